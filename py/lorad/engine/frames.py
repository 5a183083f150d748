"""Frames on the sockets between processes: four bytes of length (little endian), then one msgpack message."""

from __future__ import annotations

import socket
import struct
from typing import TypeVar

import msgspec

from lorad.engine.messages import ToEngine, ToFront
from lorad.errors import KINDS, EngineFailure, LoradError

from .messages import Failure

FRAME_BYTES_MAX = 256 << 20
"""A longer length means that the two sides have lost step; the connection ends."""

_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()
Message = TypeVar("Message")

to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
to_front: msgspec.msgpack.Decoder[ToFront] = msgspec.msgpack.Decoder(ToFront)


def pack(message: ToEngine | ToFront) -> bytes:
    """One message as a frame."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def send(connection: socket.socket, message: msgspec.Struct, descriptor: int | None = None) -> None:
    """One message, and maybe an open file along with it; blocks until it's sent."""
    body = _encoder.encode(message)
    head = _LENGTH.pack(len(body))
    if descriptor is None:
        connection.sendall(head)
    else:
        socket.send_fds(connection, [head], [descriptor])
    connection.sendall(body)


def receive(connection: socket.socket, kind: msgspec.msgpack.Decoder[Message]) -> tuple[Message, int | None]:
    """Waits for the next message, and the open file that came along. EOFError if the other side is gone."""
    head, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, 1)
    head += _exactly(connection, _LENGTH.size - len(head)) if head else b""
    if not head:
        raise EOFError
    body = _exactly(connection, _LENGTH.unpack(head)[0])
    return kind.decode(body), descriptors[0] if descriptors else None


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        some = connection.recv(min(count - len(data), 1 << 20))
        if not some:
            raise EOFError
        data += some
    return bytes(data)


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
