"""Answers in OpenAI's two forms, whole or in pieces.

A stream's chunks differ in little: each is a prefix and a suffix, made once per stream and choice, around the encoded
text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec

from lorad.engine.messages import TokenLogprobs
from lorad.server.echo import EchoEntry
from lorad.server.generation import Choice, Entry, Piece, Usage
from lorad.text.calls import CallDelta
from lorad.text.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"

LEAST_LOGPROB = -9999.0
"""What JSON says for minus infinity, as OpenAI does."""

Told = list[dict[str, Any]] | None
"""`explained`; None: it wasn't asked for."""

_encode = msgspec.json.encode


class Head(NamedTuple):
    """What all chunks of an answer share."""

    id: str
    created: int
    model: str
    fingerprint: str


class Format:
    """One endpoint's form. Subclasses say how a choice looks."""

    chunk_object: ClassVar[str]
    whole_object: ClassVar[str]
    id_prefix: ClassVar[str]

    def __init__(self, head: Head, tokenizer: Tokenizer, *, logprobs: int, include_usage: bool) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._include_usage = include_usage
        start = _encode(self._fields(self.chunk_object))
        self._begin = b"data: " + start[:-1] + b',"choices":['
        self._finish = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._around: dict[int, tuple[bytes, bytes]] = {}

    # streamed

    def opening(self, count: int) -> bytes:
        """What comes before any text."""
        raise NotImplementedError

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        """Chunks for these pieces, in order."""
        return b"".join([self._piece(piece) for piece in pieces])

    def closing(self, usage: Usage, told: Told = None) -> bytes:
        """What comes after the last piece: what is told of the choices and usage, each if asked for, and the end mark.
        Clients know that usage is last."""
        end = b""
        if told is not None:
            end += self._begin + b'],"lorad":' + _encode(told) + self._finish[1:]
        if self._include_usage:
            end += self._begin + b'],"usage":' + _encode(self._usage(usage)) + b"}\n\n"
        return end + DONE

    def _piece(self, piece: Piece) -> bytes:
        if piece.entry is None and piece.reason is None and piece.call is None:
            before, after = self._around.get(piece.choice) or self._build(piece.choice)
            return before + _encode(piece.text) + after
        choice = self._chunk_choice(piece)
        return self._begin + _encode(choice) + self._finish

    def _build(self, index: int) -> tuple[bytes, bytes]:
        mark = "\x00"
        chunk = self._begin + _encode(self._chunk_choice(Piece(index, mark, None, None))) + self._finish
        before, after = chunk.split(_encode(mark))
        self._around[index] = (before, after)
        return before, after

    def _chunk_choice(self, piece: Piece) -> dict[str, Any]:
        raise NotImplementedError

    # whole

    def whole(self, choices: Iterable[Choice], usage: Usage, told: Told = None) -> bytes:
        """The answer in one piece."""
        return _encode(
            {
                **self._fields(self.whole_object),
                "choices": [self._whole_choice(choice) for choice in choices],
                "usage": self._usage(usage),
                **({} if told is None else {"lorad": told}),
            }
        )

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        raise NotImplementedError

    # parts

    def _fields(self, kind: str) -> dict[str, Any]:
        head = self._head
        return {
            "id": head.id,
            "object": kind,
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
        }

    @staticmethod
    def _usage(usage: Usage) -> dict[str, Any]:
        return {
            "prompt_tokens": usage.prompt,
            "completion_tokens": usage.completion,
            "total_tokens": usage.prompt + usage.completion,
            "prompt_tokens_details": {"cached_tokens": usage.cached},
        }

    def _name(self, token: int) -> str:
        """A token's text, or its bytes spelled out where they are no text by themselves."""
        raw = self._tokenizer.token_bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class ChatFormat(Format):
    """/v1/chat/completions."""

    chunk_object = "chat.completion.chunk"
    whole_object = "chat.completion"
    id_prefix = "chatcmpl-"

    def opening(self, count: int) -> bytes:
        """Each choice begins with the role."""
        return b"".join(
            self._begin
            + _encode(
                {
                    "index": index,
                    "delta": {"role": "assistant", "content": ""},
                    "logprobs": None,
                    "finish_reason": None,
                }
            )
            + self._finish
            for index in range(count)
        )

    def _chunk_choice(self, piece: Piece) -> dict[str, Any]:
        delta: dict[str, Any] = {} if piece.reason is not None else {"content": piece.text}
        if piece.call is not None:
            delta = {"tool_calls": [_call_delta(piece.call)]}
        logprobs = None if piece.entry is None else self._entries([piece.entry])
        return {"index": piece.choice, "delta": delta, "logprobs": logprobs, "finish_reason": piece.reason}

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.calls:
            message["content"] = choice.text or None
            message["tool_calls"] = [_call(call) for call in choice.calls]
        return {
            "index": choice.index,
            "message": message,
            "logprobs": self._entries(choice.entries) if self._logprobs >= 0 else None,
            "finish_reason": choice.reason,
        }

    def _entries(self, entries: Iterable[Entry]) -> dict[str, Any]:
        content = []
        for token, _, logprobs in entries:
            top = [self._entry(best, value) for best, value in logprobs.top[: self._logprobs]]
            content.append({**self._entry(token, logprobs.chosen), "top_logprobs": top})
        return {"content": content, "refusal": None}

    def _entry(self, token: int, value: float) -> dict[str, Any]:
        raw = self._tokenizer.token_bytes(token)
        return {"token": self._name(token), "logprob": _finite(value), "bytes": list(raw)}


class CompletionFormat(Format):
    """/v1/completions."""

    chunk_object = "text_completion"
    whole_object = "text_completion"
    id_prefix = "cmpl-"

    def opening(self, count: int) -> bytes:
        """Nothing: the first chunk has text."""
        return b""

    def _chunk_choice(self, piece: Piece) -> dict[str, Any]:
        entries: Sequence[Entry | EchoEntry] = piece.prompt or ([] if piece.entry is None else [piece.entry])
        logprobs = self._entries(entries) if entries else None
        return {"index": piece.choice, "text": piece.text, "logprobs": logprobs, "finish_reason": piece.reason}

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": choice.echo.text + choice.text,
            "logprobs": self._entries(self._all(choice)) if self._logprobs >= 0 else None,
            "finish_reason": choice.reason,
        }

    @staticmethod
    def _all(choice: Choice) -> list[Entry | EchoEntry]:
        """Entries of the prompt, if it's told, and of the answer behind it."""
        begin = len(choice.echo.text)
        return [*choice.echo.entries, *(entry._replace(offset=entry.offset + begin) for entry in choice.entries)]

    def _entries(self, entries: Iterable[Entry | EchoEntry]) -> dict[str, Any]:
        entries = list(entries)
        return {
            "tokens": [self._name(entry.token) for entry in entries],
            "token_logprobs": [entry.logprobs and _finite(entry.logprobs.chosen) for entry in entries],
            "top_logprobs": [self._best(entry.token, entry.logprobs) for entry in entries] if self._logprobs else None,
            "text_offset": [entry.offset for entry in entries],
        }

    def _best(self, token: int, logprobs: TokenLogprobs | None) -> dict[str, float] | None:
        """The best ones by text, and the chosen one if it isn't among them."""
        if logprobs is None:
            return None
        best: dict[str, float] = {}
        for other, value in (*logprobs.top[: self._logprobs], (token, logprobs.chosen)):
            # Two tokens may have one text; the likelier comes first and stays.
            best.setdefault(self._name(other), _finite(value))
        return best


def _call(call: CallDelta) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _call_delta(call: CallDelta) -> dict[str, Any]:
    """The first news of a call are its id and name; what follows are parts of its arguments."""
    if call.name is not None:
        return {"index": call.number, **_call(call)}
    return {"index": call.number, "function": {"arguments": call.arguments}}


def _finite(value: float) -> float:
    return value if value > LEAST_LOGPROB else LEAST_LOGPROB
