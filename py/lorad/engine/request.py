"""A request followed by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lorad.engine.messages import Step, TokenLogprobs

if TYPE_CHECKING:
    from lorad.engine.engine import Engine


class Request:
    """What `Engine.add` gives back: its tokens so far, and how it ended."""

    def __init__(
        self, id: int, model: str, prompt: list[int], engine: Engine, adapters: dict[str, float] | None = None
    ) -> None:
        self.id = id
        self.model = model
        """The adapter's name; "" is the base."""
        self.adapters = adapters or {}
        """Weights by name, if it's a combination."""
        self.prompt = prompt
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        """Of each token, natural log; filled if the request asked for log-probabilities."""
        self.prompt_logprobs: list[TokenLogprobs] = []
        """Of the prompt's tokens from the second on, if `prompt_logprobs` asked for them; at its end."""
        self.finish: str | None = None
        """None while it lives; then stop, length, abort or error."""
        self.error: str | None = None
        self._engine = engine

    @property
    def text(self) -> str:
        """The tokens so far as text."""
        return self._engine.text_model.tokenizer.decode(self.tokens)

    def take(self, step: Step) -> None:
        """Adds what a step made for this request."""
        for token in step.tokens:
            if token.id == self.id:
                self.tokens.append(token.token)
                if token.logprobs is not None:
                    self.logprobs.append(token.logprobs.chosen)
        for end in step.finished:
            if end.id == self.id:
                self.finish = end.reason
                self.error = end.error.message if end.error else None
                self.prompt_logprobs = end.prompt_logprobs

    def __repr__(self) -> str:
        model = " + ".join(f"{weight:g} × {name}" for name, weight in self.adapters.items()) or self.model or "base"
        return f"<Request {self.id} on {model}: {len(self.tokens)} tokens, {self.finish or 'running'}>"
