"""`Router`: names and inventories for `_core.Fleet`, which decides in numbers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Set
from typing import NamedTuple

from lorad import _core
from lorad.errors import Unavailable
from lorad.fleet.asked import BLOCK_UNITS, UNIT_BYTES, Asked, blocks, key
from lorad.fleet.inventory import AdapterNow, Inventory, LoadTimes

SENT_MAX = 4096
"""Requests of a replica that are remembered until it has seen them."""


class Decision(NamedTuple):
    """Where a request goes, and why."""

    number: int
    replica: int
    cost: dict[str, int]
    """µs by term."""
    runner_up: tuple[int, bool, dict[str, int]] | None
    candidates: list[tuple[int, bool, dict[str, int]]]
    """All of them; none unless somebody asked for them."""

    @property
    def by(self) -> str:
        """The term by which it was cheaper than the runner-up; none: it wasn't, or there was no other."""
        if self.runner_up is None:
            return "alone"
        other = self.runner_up[2]
        term = max(self.cost, key=lambda name: other[name] - self.cost[name])
        return term if other[term] > self.cost[term] else "none"


class Wanted(NamedTuple):
    """An adapter that should be warm on a replica where it isn't."""

    replica: int
    name: str
    card: AdapterNow | None
    """As the replica has it; None: it doesn't know it."""
    source: str
    """Where others have it from."""


class _Replica:
    """What is known of one beside what the fleet keeps."""

    def __init__(self) -> None:
        self.cards: dict[str, AdapterNow] = {}
        self.aliases: dict[str, str] = {}
        self.last: Inventory | None = None
        self.sent: deque[tuple[int, str]] = deque(maxlen=SENT_MAX)
        """Number and adapter of requests that it hasn't seen."""


class Router:
    """Not thread-safe; no sockets. Replicas are the fleet's numbers."""

    def __init__(
        self,
        policy: str,
        *,
        silent_seconds: float = 3.0,
        away_loads: int = 1,
        now: Callable[[], int] = lambda: time.monotonic_ns() // 1000,
    ) -> None:
        """`now`: µs on a clock that never goes back."""
        self.policy = policy
        self._now = now
        self._fleet = _core.Fleet(
            policy, silent_us=round(silent_seconds * 1e6), away_loads=away_loads, block_tokens=BLOCK_UNITS
        )
        self._replicas: dict[int, _Replica] = {}
        self._adapters: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._holders: dict[str, set[int]] = {}
        """Replicas that know of each name."""

    # replicas

    def join(self, name: str) -> int:
        """One more; it gets requests once it has published. The name decides what lives on it."""
        index = self._fleet.add_replica(key(name), 1)
        self._replicas[index] = _Replica()
        return index

    def leave(self, replica: int) -> None:
        """One has gone for good: what lived there gets other homes."""
        for name in list(self._replicas[replica].cards):
            self._drop(replica, name)
        del self._replicas[replica]
        self._fleet.remove_replica(replica, self._now())

    def fail(self, replica: int) -> None:
        """A request to it has failed, or it can't be heard: it gets no other before it publishes."""
        self._fleet.fail(replica, self._now())

    def is_live(self, replica: int) -> bool:
        """Whether requests go there."""
        return self._fleet.is_live(replica, self._now())

    def inventory(self, replica: int) -> Inventory | None:
        """What it published last; its adapters are what changed then."""
        return self._replicas[replica].last

    def publish(self, replica: int, inventory: Inventory) -> None:
        """Takes what it told. `_core.FleetRefused`: changes on an inventory that isn't the last one; all is needed."""
        known = self._replicas[replica]
        tiers: dict[int, str] = {}
        for card in inventory.adapters:
            if (adapter := self._adapter(card)) is not None:
                tiers[adapter] = card.tier
        while known.sent and known.sent[0][0] <= inventory.seen:
            # The fleet expects that such a request loads its adapter. Whether it did, the replica has told.
            _, name = known.sent.popleft()
            card_now, number = known.cards.get(name), self._adapters.get(name)
            if inventory.base is not None and number is not None and number not in tiers:
                tiers[number] = card_now.tier if card_now is not None else "absent"
        # What a unit of a body takes, as tokens are the replica's.
        token = (inventory.token_seconds or 0.0) * UNIT_BYTES / (inventory.token_bytes or UNIT_BYTES)
        self._fleet.publish(
            replica,
            self._now(),
            number=inventory.number,
            base=inventory.base,
            seen=inventory.seen,
            queue_us=round(inventory.queue_seconds * 1e6),
            token_ns=round(token * 1e9),
            adapter_kib_max=inventory.adapter_bytes_max >> 10,
            draining=inventory.draining,
            tiers=list(tiers.items()),
            **_loads(inventory.loads),
        )
        there = {card.name for card in inventory.adapters if card.tier != "absent"}
        if inventory.base is None:
            for name in known.cards.keys() - there:
                self._drop(replica, name)
        for card in inventory.adapters:
            if card.name in there:
                known.cards[card.name] = card
                self._holders.setdefault(card.name, set()).add(replica)
            else:
                self._drop(replica, card.name)
        if inventory.aliases is not None:
            known.aliases = inventory.aliases
        known.last = inventory

    def _adapter(self, card: AdapterNow) -> int | None:
        """Its number; None of one that nobody has read yet, so that nobody knows how large it is."""
        number = self._adapters.get(card.name)
        if number is None and card.bytes and card.tier != "absent":
            number = self._adapters[card.name] = self._fleet.add_adapter(key(card.name), max(card.bytes >> 10, 1))
            self._names[number] = card.name
        return number

    def _drop(self, replica: int, name: str) -> None:
        self._replicas[replica].cards.pop(name, None)
        holders = self._holders.get(name, set())
        holders.discard(replica)
        if not holders:
            self._holders.pop(name, None)
            if (number := self._adapters.pop(name, None)) is not None:
                del self._names[number]
                self._fleet.remove_adapter(number)

    # requests

    def meant(self, model: str) -> str:
        """The adapter that a request's model means; the base's and unknown names as they are."""
        for replica in self._replicas.values():
            if replica.last is not None and model.startswith(f"{replica.last.model}:"):
                model = model.removeprefix(f"{replica.last.model}:")
            if model in replica.aliases:
                return replica.aliases[model]
        return model

    def route(self, asked: Asked) -> Decision:
        """Decides, and counts the request as sent. `Unavailable`: there is nobody to send it to."""
        name = self.meant(asked.model)
        adapter = self._adapters.get(name)
        now, hashes = self._now(), blocks(name, asked.text)
        candidates = []
        try:
            if asked.explain:
                candidates = self._fleet.candidates(now, adapter=adapter, tokens=asked.units, blocks=hashes)
            made = self._fleet.route(now, adapter=adapter, tokens=asked.units, blocks=hashes)
        except _core.FleetRefused as refused:
            if refused.code != "no_replica":
                raise
            raise Unavailable(str(refused), code="no_replica") from None
        if adapter is not None:
            self._replicas[made["replica"]].sent.append((made["number"], name))
        return Decision(made["number"], made["replica"], made["cost"], made["runner_up"], candidates)

    # placement

    def rebalance(self, moves_max: int) -> list[str]:
        """Moves homes, at most so many, and says why each of them was moved."""
        return [reason for _, _, _, reason in self._fleet.rebalance(self._now(), moves_max)]

    def wanted(self, most: int, without: Set[tuple[int, str]] = frozenset()) -> list[Wanted]:
        """Adapters that aren't in pages where they live, the most asked for first, of those that are asked for.
        `without`: (replica, name) of others."""
        now = self._now()
        heats = [(self._fleet.heat(number, now), name, number) for name, number in self._adapters.items()]
        found: list[Wanted] = []
        for heat, name, number in sorted(heats, reverse=True):
            if heat < 1.0:
                break
            for home in self._fleet.homes(number):
                card = self._replicas[home].cards.get(name)
                if (
                    (home, name) in without
                    or not self.is_live(home)
                    or (card is not None and card.tier in ("hot", "loading"))
                ):
                    continue
                if len(found) >= most:
                    return found
                sources = (self._replicas[holder].cards[name].source for holder in sorted(self._holders[name]))
                found.append(Wanted(home, name, card, next(filter(None, sources), "")))
        return found


def _loads(loads: LoadTimes) -> dict[str, tuple[int, int] | None]:
    """µs for each and ns for each KiB."""
    named = {"warm": loads.warm, "cold": loads.cold, "absent": loads.absent}
    return {name: None if each is None else (0, round(each * 1024e9)) for name, each in named.items()}
