"""Cases: which runs a comparison is made of, before any of them runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lorad import _core
from lorad.errors import InvalidRequest
from lorad.simulate import policy as policies_of
from lorad.simulate.scenario import Scenario

CASES_MAX = 100_000
RATES = (0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25)
"""What `--sweep arrivals` tries, as parts of the scenario's own rate."""


@dataclass(frozen=True)
class Case:
    """One run. What it was made from, and the text that runs."""

    scenario: str
    text: str
    seed: int
    policy: str = ""
    """"" is the scenario's own."""
    sweep: dict[str, str] = field(default_factory=dict)
    """What of the sweep this case has."""
    offered_per_s: float | None = None
    """Requests per second; None when all come at once."""

    @property
    def title(self) -> str:
        """For messages."""
        swept = [f"{key}={value}" for key, value in self.sweep.items()]
        return " ".join([self.scenario, *filter(None, [self.policy]), *swept, f"seed={self.seed}"])


def cases(
    scenarios: Sequence[Scenario],
    *,
    policies: Sequence[str] = (),
    sweep: Mapping[str, Sequence[str]] | None = None,
    seeds: int = 1,
) -> list[Case]:
    """Every scenario under every policy at every value, with as many seeds, counted from the scenario's own.

    An empty list of values means, for `arrivals`, parts of the scenario's own rate. Refuses what can't be run before
    anything does.
    """
    if seeds < 1:
        raise InvalidRequest(f"seeds: at least 1, got {seeds}", code="option_range", param="seeds")
    made: list[Case] = []
    for scenario in scenarios:
        first = int(scenario.facts.values["seed"])
        for swept in _points(scenario, sweep or {}):
            at_point = scenario.changed(swept)
            for name in policies or [""]:
                options = policies_of.values(name, at_point.facts) if name else {}
                chosen = at_point.changed(options).complete()
                gap_us = chosen.facts.gap_us
                offered = 1e6 / gap_us if gap_us else None
                for seed in range(first, first + seeds):
                    if len(made) == CASES_MAX:
                        message = f"at most {CASES_MAX} runs in one go, these would be more"
                        raise InvalidRequest(message, code="option_range", param="seeds")
                    text = chosen.changed({"seed": str(seed)}).text
                    made.append(Case(scenario.name, text, seed, name, swept, offered))
    return made


def random_cases(seeds: int, steps: int, *, first: int = 0) -> list[Case]:
    """Worlds with tiny pools and all faults at once, about so many steps long, checked after each."""
    for name, value, least, most in (
        ("random", seeds, 1, CASES_MAX),
        ("steps", steps, 1, 1 << 24),
        ("first", first, 0, (1 << 64) - 1 - seeds),
    ):
        if not least <= value <= most:
            raise InvalidRequest(f"{name}: {least} to {most}, got {value}", code="option_range", param=name)
    return [Case(f"chaos-{seed}", _core.random_scenario(seed, steps), seed) for seed in range(first, first + seeds)]


def _points(scenario: Scenario, sweep: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    points: list[dict[str, str]] = [{}]
    for key, given in sweep.items():
        listed = given or (_rates(scenario) if key == "arrivals" else [])
        if not listed:
            raise InvalidRequest(f"sweep: {key} wants values: {key}=1,2,3", code="option_form", param="sweep")
        points = [{**point, key: value} for point in points for value in listed]
    return points


def _rates(scenario: Scenario) -> list[str]:
    form, *numbers = scenario.facts.values["arrivals"].split(":")
    if not numbers:
        raise InvalidRequest(
            f"sweep: {scenario.name} has arrivals={form}, which is no rate", code="option_form", param="sweep"
        )
    gap, *others = numbers
    return [":".join([form, str(max(1, round(int(gap) / rate))), *others]) for rate in RATES]
