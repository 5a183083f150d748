"""Policies that are compared, as values of a scenario. `NAME` or `NAME:PARAMETER`, as `fair:10s`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lorad.errors import InvalidRequest
from lorad.simulate.scenario import Facts

Values = dict[str, str]


@dataclass(frozen=True)
class Policy:
    """How one is named, said and set; `parameter` is the form of what may follow its name."""

    name: str
    help: str
    parameter: str
    values: Callable[[str, Facts], Values]


def _fair(parameter: str, _facts: Facts) -> Values:
    values = {"order": "fair", "eviction": "cost", "split": "unified"}
    if parameter:
        number, unit = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s)", parameter).groups()  # type: ignore[union-attr]
        values["urgent_after_us"] = str(round(float(number) * {"ms": 1e3, "s": 1e6}[unit]))
    return values


def _split(parameter: str, facts: Facts) -> Values:
    pages = int(parameter) if parameter else _usable(facts) // 2
    return {"order": "fair", "eviction": "cost", "split": f"fixed:{pages}"}


def _slots(parameter: str, facts: Facts) -> Values:
    largest = max(facts.adapter_pages, default=1)
    count = int(parameter) if parameter else max(1, _usable(facts) // 2 // largest)
    return {"order": "arrival", "eviction": "lru", "split": f"slots:{count}:{largest}"}


def _usable(facts: Facts) -> int:
    return int(facts.values["pages"]) - int(facts.values["pages_reserved"])


def _plain(order: str, eviction: str = "cost") -> Callable[[str, Facts], Values]:
    return lambda _parameter, _facts: {"order": order, "eviction": eviction, "split": "unified"}


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("fair", "shares and a bound on every wait; fair:10s: urgent after 10 s", r"\d+(\.\d+)?(ms|s)", _fair),
        Policy("arrival", "by arrival, passing over what can't run", "", _plain("arrival")),
        Policy("affinity", "hot adapters as long as anybody asks for them", "", _plain("affinity")),
        Policy("lru", "fair, the least recently used adapter goes first", "", _plain("fair", "lru")),
        Policy("split", "fair, half the pages (split:PAGES) for adapters and never more", r"\d+", _split),
        Policy(
            "slots", "by arrival, LRU, half the pages as slots of the largest adapter (slots:COUNT)", r"\d+", _slots
        ),
    )
}


def parse(text: str) -> list[str]:
    """`fair,arrival` or `all` as a list of known policies."""
    names = list(POLICIES) if text == "all" else [name.strip() for name in text.split(",")]
    for index, name in enumerate(names):
        _find(name)
        if name in names[:index]:
            raise InvalidRequest(f"compare: {name} is there twice", code="option_form", param="compare")
    return names


def values(name: str, facts: Facts) -> Values:
    """What a policy sets in a scenario."""
    policy, parameter = _find(name)
    return policy.values(parameter, facts)


def _find(name: str) -> tuple[Policy, str]:
    stem, colon, parameter = name.partition(":")
    policy = POLICIES.get(stem)
    if policy is None:
        known: Sequence[str] = list(POLICIES)
        message = f"compare: there is no policy {name!r}; known are {', '.join(known)}, and all for all of them"
        raise InvalidRequest(message, code="policy_unknown", param="compare")
    if colon and not (policy.parameter and re.fullmatch(policy.parameter, parameter)):
        raise InvalidRequest(f"compare: {name!r}: {policy.help}", code="option_form", param="compare")
    return policy, parameter
