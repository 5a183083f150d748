"""A scenario: who asks for what, on which machine, under which limits. Its form is told in docs/simulation.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from lorad import _core
from lorad.errors import InvalidRequest, NotFound
from lorad.named_file import is_file, read_text

SCENARIO_BYTES_MAX = 1 << 20


class Facts(msgspec.Struct, frozen=True):
    """What a scenario says by key, defaults included, and what follows from it."""

    values: dict[str, str]
    adapter_pages: list[int]
    """Pages of an adapter, one entry for each rank or size that is named."""
    page_bytes: int
    """0 when there is no model to say it."""
    gap_us: float | None
    """Between two requests on average; None when all come at once."""


@dataclass(frozen=True)
class Scenario:
    """Its name and its text, in which a later line wins."""

    name: str
    text: str

    @classmethod
    def named(cls, name: str) -> Scenario:
        """A file, or one of those that ship with the package; a file wins."""
        path = Path(name)
        if is_file(path):
            size = path.stat().st_size
            if size > SCENARIO_BYTES_MAX:
                message = f"{name}: a scenario has at most {SCENARIO_BYTES_MAX} bytes, this file {size}"
                raise InvalidRequest(message, code="scenario_size", param="scenario")
            try:
                return cls(path.stem, read_text(path, SCENARIO_BYTES_MAX))
            except UnicodeDecodeError as error:
                raise InvalidRequest(f"{name}: not UTF-8: {error}", code="scenario_text", param="scenario") from None
        if name in _core.SCENARIOS:
            return cls(name, _core.SCENARIOS[name])
        known = ", ".join(_core.SCENARIOS)
        raise NotFound(
            f"scenario {name!r}: neither a file nor one of {known}", code="scenario_unknown", param="scenario"
        )

    def changed(self, values: Mapping[str, str]) -> Scenario:
        """The same with other values."""
        lines = [self.text.rstrip("\n")]
        for key, value in values.items():
            if not re.fullmatch(r"\w+", key) or not value or re.search(r"[\s#]", value):
                raise InvalidRequest(f"{key}={value}: wants KEY=VALUE without blanks", code="option_form", param=key)
            lines.append(f"{key}={value}")
        return Scenario(self.name, "\n".join(lines) + "\n")

    @cached_property
    def facts(self) -> Facts:
        """Refuses what can't be run."""
        with refusals(self):
            return msgspec.convert(_core.scenario(self.text), Facts)

    def complete(self) -> Scenario:
        """Waits are compared with their bound, unless the scenario says otherwise: fair order has one."""
        if re.search(r"^[^#]*\bwaits=", self.text, re.MULTILINE):
            return self
        return self.changed({"waits": "1"}) if self.facts.values["order"] == "fair" else self


@contextmanager
def refusals(scenario: Scenario) -> Iterator[None]:
    """Turns the core's refusals of a scenario into lorad's, with the scenario's name."""
    try:
        yield
    except _core.ScenarioError as error:
        message = f"scenario {scenario.name}: {error}"
        raise InvalidRequest(message, code=error.code, param=error.field) from None
