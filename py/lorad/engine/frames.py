"""Frames on the socket between front and engine: four bytes of length (little endian), then one msgpack message."""

from __future__ import annotations

import struct

import msgspec

from lorad.engine.messages import ToEngine, ToFront
from lorad.errors import KINDS, EngineFailure, LoradError

from .messages import Failure

FRAME_BYTES_MAX = 256 << 20
"""A longer length means that the two sides have lost step; the connection ends."""

_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()

to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
to_front: msgspec.msgpack.Decoder[ToFront] = msgspec.msgpack.Decoder(ToFront)


def pack(message: ToEngine | ToFront) -> bytes:
    """One message as a frame."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameBuffer:
    """Cuts a byte stream into message bodies."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Takes what was read and gives the bodies that are whole by now."""
        held = self._bytes
        held += data
        bodies: list[bytes] = []
        position, size = 0, len(held)
        while size - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(held, position)
            if length > FRAME_BYTES_MAX:
                raise EngineFailure(f"a frame of {length} bytes, at most {FRAME_BYTES_MAX}", code="engine_protocol")
            end = position + _LENGTH.size + length
            if end > size:
                break
            bodies.append(bytes(held[position + _LENGTH.size : end]))
            position = end
        if position:
            del held[:position]
        return bodies


def failure_of(error: LoradError) -> Failure:
    """A refusal in the form that crosses the socket."""
    return Failure(kind=type(error).__name__, code=error.code, message=error.message, param=error.param)


def error_of(failure: Failure) -> LoradError:
    """The refusal that crossed the socket."""
    return KINDS.get(failure.kind, EngineFailure)(failure.message, code=failure.code, param=failure.param)
