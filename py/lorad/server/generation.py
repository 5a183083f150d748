"""One HTTP request at work: its sequences in the engine, their text, and how they end.

Text is made where tokens arrive, so that a stop string ends a sequence in the very step that completes it, whether or
not anybody is reading. The handler wakes once per read from the engine, not once per token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from lorad.engine.frames import error_of
from lorad.engine.handle import EngineHandle
from lorad.engine.messages import Finished, Generate, Token, TokenLogprobs, Waits
from lorad.errors import EngineFailure, LoradError
from lorad.observe.metrics import Ended, Metrics
from lorad.server.echo import Echo, EchoEntry, echo_of
from lorad.server.registry import Target
from lorad.server.requests import Ask
from lorad.text.calls import CallDelta, CallReader
from lorad.text.stream import TextStream
from lorad.text.tokenizer import Tokenizer


class Entry(NamedTuple):
    """One token with its log-probabilities; `offset` is where its text begins."""

    token: int
    offset: int
    logprobs: TokenLogprobs


class Piece(NamedTuple):
    """News of one choice: text, a token's entry, a call, its prompt's entries, or its end."""

    choice: int
    text: str
    entry: Entry | None
    reason: str | None
    call: CallDelta | None = None
    prompt: Sequence[EchoEntry] = ()


class Usage(NamedTuple):
    """Tokens of a whole request. A prompt counts once, however many answers it gets."""

    prompt: int
    completion: int
    cached: int


class Choice:
    """One sequence."""

    __slots__ = (
        *("cached", "entries", "first_at", "index", "last_at", "parts", "prompt", "reader", "reason", "request_id"),
        *("echo", "prompt_scores", "stream", "tokens", "waits"),
    )

    def __init__(
        self, index: int, request_id: int, prompt: list[int], stream: TextStream, reader: CallReader | None
    ) -> None:
        self.index = index
        self.request_id = request_id
        self.prompt = prompt
        self.stream = stream
        self.reader = reader
        """None: what looks like a call is text."""
        self.tokens = 0
        self.cached = 0
        self.parts: list[str] = []
        self.entries: list[Entry] = []
        self.reason: str | None = None
        self.first_at: float | None = None
        """When its first and its last token came, on the loop's clock."""
        self.last_at: float | None = None
        self.waits: Waits | None = None
        self.prompt_scores: list[TokenLogprobs] = []
        self.echo = Echo("", ())
        """What the answer begins with."""

    @property
    def text(self) -> str:
        """All text that went out."""
        return "".join(self.parts)

    @property
    def calls(self) -> list[CallDelta]:
        """All calls that went out."""
        return [] if self.reader is None else self.reader.calls


class Generation:
    """The sequences of one request; a `Sink` of the engine."""

    def __init__(
        self,
        *,
        handle: EngineHandle,
        tokenizer: Tokenizer,
        metrics: Metrics,
        ask: Ask,
        target: Target,
        field: str,
        began: float,
        tenant: int = 0,
    ) -> None:
        """`tenant`: by its number."""
        self.ask = ask
        self.target = target
        self.choices: list[Choice] = []
        self._field = field
        """The route's name for the prompt, which the engine doesn't know."""
        self._form_field = ask.form.field.split(".", maxsplit=1)[0] if ask.form is not None else "grammar"
        """Likewise of the field that brought the grammar."""
        self._handle = handle
        self._tokenizer = tokenizer
        self._metrics = metrics
        self.began = began
        self.tenant = tenant
        self._loop = asyncio.get_running_loop()
        self._by_id: dict[int, Choice] = {}
        self._owed: dict[int, Choice] = {}
        """Those whose end the engine hasn't told yet, those that were given up too."""
        self._on_settled: Callable[[], None] | None = None
        self._pieces: list[Piece] = []
        self._error: LoradError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def start(self, prompts: Sequence[tuple[list[int], int]], ids: Sequence[int]) -> None:
        """Submits `ask.n` sequences for each (prompt, max_tokens); `ids` are their request ids."""
        numbers = iter(ids)
        ask, target, more = self.ask, self.target, len(ids)
        for prompt, max_tokens in prompts:
            first: int | None = None
            for sample in range(ask.n):
                stream = TextStream(
                    self._tokenizer,
                    ask.stops,
                    min_tokens=ask.min_tokens,
                    skip_special=ask.skip_special,
                    keep_stop=ask.keep_stop,
                )
                reader = None if ask.calling is None else CallReader()
                choice = Choice(len(self.choices), next(numbers), prompt, stream, reader)
                self.choices.append(choice)
                sampling = ask.sampling(sample, max_tokens, self._tokenizer.end_ids)
                more -= 1
                self._handle.submit(
                    Generate(choice.request_id, prompt, sampling, target.generation, self.tenant, first, more), self
                )
                first = first or choice.request_id
                self._by_id[choice.request_id] = self._owed[choice.request_id] = choice
                self._metrics.began(target.name)

    def close(self) -> None:
        """Forgets whatever still runs. Safe at any moment, and twice."""
        running, self._by_id = self._by_id, {}
        for request_id, choice in running.items():
            self._handle.abort(request_id)
            self._count(choice, "abort")

    def fail(self, error: LoradError) -> None:
        """Ends the request with an error, as its client will see it."""
        if self._error is None and self._by_id:
            self._error = error
            self.close()
            self.flush()

    def when_settled(self, then: Callable[[], None]) -> None:
        """Calls `then` once the engine has told what each sequence cost: of those that were given up, later."""
        self._on_settled = then
        self._settle()

    @property
    def running(self) -> Collection[Choice]:
        """Its sequences that aren't complete."""
        return self._by_id.values()

    @property
    def standing(self) -> tuple[int, int]:
        """How many of its sequences wait for their first token, and how many have it and aren't complete."""
        waiting = sum(choice.last_at is None for choice in self._by_id.values())
        return waiting, len(self._by_id) - waiting

    @property
    def usage(self) -> Usage:
        """Counts, the same streamed or not."""
        firsts = self.choices[:: self.ask.n]
        return Usage(
            prompt=sum(len(choice.prompt) for choice in firsts),
            completion=sum(choice.tokens for choice in self.choices),
            cached=sum(choice.cached for choice in firsts),
        )

    # for the handler

    async def pieces(self) -> list[Piece]:
        """News since the last call, as soon as there are some; none at the end. Raises what ended the request."""
        if self.ask.prompt_only and self._by_id:
            await self.finish()
            self._pieces = [
                Piece(choice.index, choice.echo.text, None, choice.reason, prompt=choice.echo.entries)
                for choice in self.choices
            ]
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if not self._by_id:
                return []
            await self._wait()
        news, self._pieces = self._pieces, []
        return news

    async def finish(self) -> None:
        """Waits for the end of all choices. Raises what ended the request."""
        while self._by_id:
            await self._wait()
        if self._error is not None:
            raise self._error
        if self.ask.echo:
            for first in range(0, len(self.choices), self.ask.n):
                one = self.choices[first]
                echo = echo_of(self._tokenizer, one.prompt, one.prompt_scores, skip_special=self.ask.skip_special)
                for choice in self.choices[first : first + self.ask.n]:
                    choice.echo = echo

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # for the engine

    def token(self, token: Token) -> None:
        """One more token of one choice."""
        choice = self._by_id.get(token.id)
        if choice is None or choice.stream.stopped or self.ask.prompt_only:
            return
        now = self._loop.time()
        if choice.last_at is None:
            choice.first_at = now
            self._metrics.first_token(self.target.name, now - self.began, now, self.tenant)
        else:
            self._metrics.next_token(now - choice.last_at, now)
        choice.last_at = now
        choice.tokens += 1
        entry = None
        if token.logprobs is not None and self.ask.logprobs >= 0:
            entry = Entry(token.token, choice.stream.characters, token.logprobs)
            choice.entries.append(entry)
        self._take(choice, choice.stream.push(token.token), entry)
        if choice.stream.stopped:
            # The text is complete. Its end comes from the engine, with what it cost.
            self._handle.abort(token.id)

    def finished(self, end: Finished) -> None:
        """One choice has ended."""
        choice = self._owed.pop(end.id, None)
        if choice is None:
            return
        choice.cached, choice.waits, choice.prompt_scores = end.cached_tokens, end.waits, end.prompt_logprobs
        if end.id in self._by_id:
            self._finish(choice, end)
        self._settle()

    def _finish(self, choice: Choice, end: Finished) -> None:
        if self.ask.prompt_only and end.reason in ("stop", "length"):
            self._end(choice, "length")
            return
        if choice.stream.stopped or end.reason in ("stop", "length"):
            last, begin = end.stop_token, choice.stream.characters
            kept = last if self.ask.keep_stop and not choice.stream.stopped else None
            if kept is not None:
                self._take(choice, choice.stream.push(kept.token))
            self._end(choice, end.reason)
            if self.ask.echo and last is not None and last.logprobs is not None and self.ask.logprobs >= 0:
                # Who scores a text by `echo` asks for one token and cuts it off, whichever it is.
                choice.entries.append(Entry(last.token, len(choice.text) if kept is None else begin, last.logprobs))
            return
        self._count(choice, "error")
        del self._by_id[end.id]
        if end.error is not None:
            error = error_of(end.error)
            error.param = {"prompt": self._field, "grammar": self._form_field}.get(error.param or "", error.param)
            self._error = self._error or error
        else:
            self._error = self._error or EngineFailure("the engine gave the request up", code="engine_abort")
        self.close()

    def failed(self, request_id: int, error: LoradError) -> None:
        """The engine is gone."""
        self._owed.pop(request_id, None)
        choice = self._by_id.get(request_id)
        if choice is not None and choice.stream.stopped:
            self._end(choice, "stop")
        elif choice is not None:
            del self._by_id[request_id]
            self._count(choice, "error")
            self._error = self._error or error
        self._settle()

    def flush(self) -> None:
        """Wakes the handler if it has something to do: a stream's news, or the end."""
        waiter = self._waiter
        if waiter is not None and not waiter.done() and (self._pieces or not self._by_id):
            waiter.set_result(None)

    def _settle(self) -> None:
        if not self._owed and self._on_settled is not None:
            then, self._on_settled = self._on_settled, None
            then()

    def _take(self, choice: Choice, text: str, entry: Entry | None = None) -> None:
        """Text that may go out, and the entry of the token that it came with."""
        reader = choice.reader
        news: list[str | CallDelta] = [text] if reader is None else reader.push(text)
        if entry is not None and not (news and isinstance(news[0], str)):
            news.insert(0, "")
        for one in news:
            if isinstance(one, CallDelta):
                if self.ask.stream:
                    self._pieces.append(Piece(choice.index, "", None, None, one))
                continue
            if one:
                choice.parts.append(one)
            if self.ask.stream and (one or entry is not None):
                self._pieces.append(Piece(choice.index, one, entry, None))
            entry = None

    def _end(self, choice: Choice, reason: str) -> None:
        rest = choice.stream.flush()
        if choice.stream.stopped:
            reason = "stop"
        reader = choice.reader
        if reader is not None:
            self._take(choice, rest)
            if reason == "stop" and reader.calls and not reader.inside:
                reason = "tool_calls"
            rest = reader.flush()
        if rest:
            choice.parts.append(rest)
            if self.ask.stream:
                self._pieces.append(Piece(choice.index, rest, None, None))
        choice.reason = reason
        del self._by_id[choice.request_id]
        if self.ask.stream and not self.ask.prompt_only:
            self._pieces.append(Piece(choice.index, "", None, reason))
        self._count(choice, reason)

    def _count(self, choice: Choice, reason: str) -> None:
        making = 0.0 if choice.first_at is None or choice.last_at is None else choice.last_at - choice.first_at
        self._metrics.ended(
            Ended(
                model=self.target.name,
                reason=reason,
                prompt_tokens=len(choice.prompt),
                made_tokens=choice.tokens,
                cached_tokens=choice.cached,
                seconds=self._loop.time() - self.began,
                making_seconds=making,
                waits=choice.waits,
            )
        )
