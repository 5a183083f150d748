"""`Router`: names, inventories and what was sent, on a clock by hand."""

from __future__ import annotations

import random

import pytest

from lorad import _core
from lorad.errors import Unavailable
from lorad.fleet.asked import BLOCK_BYTES, BLOCKS_MAX, blocks, read
from lorad.fleet.inventory import Inventory, LoadTimes
from lorad.fleet.router import Router
from routing import adapter

SECOND = 1_000_000


class Clock:
    us = 0

    def __call__(self) -> int:
        return self.us


def asks(model: str, prompt: str = "hi") -> bytes:
    return b'{"prompt":"%s","model":"%s"}' % (prompt.encode(), model.encode())


def whole(number: int, *cards: object, **changed: object) -> Inventory:
    fields = {"model": "base", "loads": LoadTimes(warm=1e-6), "token_seconds": 0.001, "adapters": list(cards)}
    return Inventory(number, **{**fields, **changed})  # type: ignore[arg-type]


def load_of(router: Router, replica: int, model: str) -> int:
    """The load term of a replica, in µs, without sending."""
    number = router._adapters[model]
    found = router._fleet.candidates(router._now(), adapter=number, tokens=1, blocks=[])
    return next(cost["load"] for index, _, cost in found if index == replica)


def test_a_refused_request_doesnt_leave_its_adapter_loading() -> None:
    router = Router("cost", now=Clock())
    replica = router.join("one")
    router.publish(replica, whole(1, adapter("a")))
    warm = load_of(router, replica, "a")
    decision = router.route(read(asks("a")))
    assert load_of(router, replica, "a") == warm // 2, "it's expected to be on its way"
    router.publish(replica, whole(2, base=1))
    assert load_of(router, replica, "a") == warm // 2, "the replica hasn't seen it yet"
    router.publish(replica, whole(3, base=2, seen=decision.number))
    assert load_of(router, replica, "a") == warm
    router.publish(replica, whole(4, adapter("a", "hot"), base=3, seen=decision.number))
    assert load_of(router, replica, "a") == 0


def test_changes_on_an_inventory_that_isnt_known_are_refused() -> None:
    router = Router("cost", now=Clock())
    replica = router.join("one")
    router.publish(replica, whole(1, adapter("a")))
    with pytest.raises(_core.FleetRefused) as caught:
        router.publish(replica, whole(5, adapter("a", "hot"), base=3))
    assert caught.value.code == "inventory_gap" and load_of(router, replica, "a") > 0
    router.publish(replica, whole(1, adapter("a", "hot")))
    assert load_of(router, replica, "a") == 0, "a whole one of a server that was started again"


def test_a_name_is_known_as_long_as_anybody_has_it() -> None:
    router = Router("cost", now=Clock())
    one, two = router.join("one"), router.join("two")
    router.publish(one, whole(1, adapter("a"), adapter("b"), aliases={"short": "a"}))
    router.publish(two, whole(1, adapter("a"), adapter("unread", bytes=0)))
    assert router._adapters.keys() == {"a", "b"}, "of one that nobody has read nobody knows the size"
    assert (router.meant("short"), router.meant("base:b"), router.meant("x")) == ("a", "b", "x")
    router.publish(one, whole(2, adapter("b", "absent"), base=1))
    assert router._adapters.keys() == {"a"}
    router.leave(one)
    assert router._adapters.keys() == {"a"} and router.meant("short") == "short"
    router.publish(two, whole(2))
    assert router._adapters == router._names == router._holders == {}
    assert router.route(read(asks("a"))).replica == two, "an unknown name is answered by the server"
    router.leave(two)
    with pytest.raises(Unavailable) as caught:
        router.route(read(asks("a")))
    assert caught.value.code == "no_replica"


def test_tokens_are_the_servers_and_bytes_are_the_routers() -> None:
    router = Router("cost", now=Clock())
    replica = router.join("one")
    body = asks("base", "x" * 4000)
    router.publish(replica, whole(1, token_seconds=0.002, token_bytes=8.0))
    cost = router.route(read(body)).cost
    assert cost["prefix"] == pytest.approx(len(body) / 8 * 2000, rel=0.001), "2 ms for each 8 bytes"
    again = router.route(read(body)).cost
    assert again["prefix"] < 0.1 * cost["prefix"], "all whole blocks were sent there"
    assert again["queue"] == cost["prefix"], "the first one is before it"


def test_the_beginnings_of_conversations_are_alike() -> None:
    first = b'{"model":"a","messages":[{"role":"user","content":"%s"}]}' % (b"x" * 600)
    second = first.replace(b"}]}", b'},{"role":"assistant","content":"y"}], "n": 1}')
    one, two = blocks("a", read(first).text), blocks("a", read(second).text)
    assert len(one) == 2 and two[:2] == one and blocks("b", read(first).text)[0] != one[0]
    long = b"z" * (BLOCK_BYTES * BLOCKS_MAX * 2)
    assert len(blocks("a", long)) == BLOCKS_MAX == len(set(blocks("a", long)))
    assert blocks("a", b"z" * (BLOCK_BYTES - 1)) == []


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"model":1}', b'{"model":"\\ud800"}', b"\xff", b"[" * 100000])
def test_a_body_that_isnt_right_goes_anywhere(body: bytes) -> None:
    assert read(body) == ("", b"", len(body) // 4, False)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_comes_the_books_agree(seed: int) -> None:
    """Random replicas, inventories and requests: names, numbers and holders stay each other's."""
    rng, clock = random.Random(seed), Clock()
    router = Router(rng.choice(_core.FLEET_POLICIES), now=clock)
    published: dict[int, dict[str, str]] = {}
    numbers: dict[int, int] = {}
    for step in range(400):
        clock.us += rng.randrange(SECOND // 2)
        kind = rng.random()
        if kind < 0.1 or not published:
            replica = router.join(f"r{step}")
            published[replica], numbers[replica] = {}, 0
            router.publish(replica, whole(0))
        elif kind < 0.15:
            replica = rng.choice(list(published))
            del published[replica]
            router.leave(replica)
        elif kind < 0.6:
            replica = rng.choice(list(published))
            base, numbers[replica] = numbers[replica], numbers[replica] + 1
            changed = {f"a{rng.randrange(12)}": rng.choice(["hot", "warm", "absent"]) for _ in range(rng.randrange(4))}
            is_whole = rng.random() < 0.2
            cards = [adapter(name, tier) for name, tier in changed.items()]
            seen = rng.randrange(step + 1)
            given = whole(numbers[replica], *cards, base=None if is_whole else base, seen=seen)
            router.publish(replica, given)
            published[replica] = {
                name: tier
                for name, tier in {**({} if is_whole else published[replica]), **changed}.items()
                if tier != "absent"
            }
        elif kind < 0.9:
            try:
                assert router.route(read(asks(f"a{rng.randrange(14)}"))).replica in published
            except Unavailable:
                assert not any(router.is_live(replica) for replica in published)
        else:
            router.rebalance(rng.randrange(4))
            for wanted in router.wanted(5):
                assert published[wanted.replica].get(wanted.name, "absent") != "hot"
        names = {name for cards in published.values() for name in cards}
        assert router._adapters.keys() == router._holders.keys() == names
        assert {number: name for name, number in router._adapters.items()} == router._names
        for name, holders in router._holders.items():
            assert holders == {replica for replica, cards in published.items() if name in cards}
