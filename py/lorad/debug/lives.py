"""What became of each request, told by calls and events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

Event: TypeAlias = tuple[str, int, int | str]
"""Kind, request or adapter, value: as the core's."""


class Life(msgspec.Struct):
    """One request from its arrival to its end. Times in µs of the core; steps are numbers of plans."""

    request: int
    adapter: int | None
    tenant: int
    prompt_tokens: int
    max_tokens: int
    added: int
    added_step: int
    """The last plan that was made before."""
    admitted: int | None = None
    first_token: int | None = None
    first_token_step: int | None = None
    finished: int | None = None
    reason: str | None = None
    """None while it lives; then as in the event."""
    tokens: list[int] = []
    """Of the answer, a stop token too."""
    preemptions: int = 0

    @property
    def ttft_us(self) -> int | None:
        """Time to the first token."""
        return None if self.first_token is None else self.first_token - self.added

    @property
    def ttft_steps(self) -> int | None:
        """Plans that were made from its arrival to its first token."""
        return None if self.first_token_step is None else self.first_token_step - self.added_step


class Lives:
    """All requests of a run, in the order of their arrival, and who has which line."""

    def __init__(self) -> None:
        self.all: list[Life] = []
        self.lines: dict[int, int] = {}
        """Line of the page table to the request that last took it."""
        self.adapters: dict[int, int | None] = {}
        """The adapter of each request; where a number was used again, the last one's."""
        self.living: dict[int, Life] = {}
        self._now = 0

    def take(self, call: str, arguments: Mapping[str, Any], taken: bool, events: Iterable[Event], step: int) -> None:
        """A call, whether the core took it, and what happened; `step`: the last plan that was made."""
        # the core's time never goes back
        self._now = now = max(self._now, int(arguments.get("now", 0))) if taken else self._now
        if call == "add" and taken:
            life = Life(
                request=arguments["id"],
                adapter=arguments["adapter"],
                tenant=arguments.get("tenant", 0),
                prompt_tokens=len(arguments["prompt"]),
                max_tokens=arguments["max_tokens"],
                added=now,
                added_step=step,
            )
            self.all.append(life)
            self.living[life.request] = life
            self.adapters[life.request] = life.adapter
        for kind, subject, value in events:
            found = self.living.get(subject)
            if found is None or kind.startswith("adapter_"):
                continue
            match kind:
                case "admitted":
                    self.lines[int(value)] = subject
                    if found.admitted is None:
                        found.admitted = now
                case "preempted":
                    found.preemptions += 1
                case "token":
                    found.tokens.append(int(value))
                    if found.first_token is None:
                        found.first_token, found.first_token_step = now, step
                case "finished":
                    found.finished, found.reason = now, str(value)
                    del self.living[subject]
