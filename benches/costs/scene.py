"""Scenes: what is asked of the core so that it makes a plan of a certain kind."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

RANKS = (8, 16, 64)
"""Ranks of the adapters; each is there `OF_EACH_RANK` times."""
OF_EACH_RANK = 8
ADAPTERS_MAX = len(RANKS) * OF_EACH_RANK
PAGE_IN_RANKS = (1, 4, 8, 16, 32, 64, 128)
"""Ranks of the adapters after those, which are only ever paged in."""
ROWS_MAX = 32
CHUNK_MAX = 256
CONTEXT_MAX = 1000

KINDS = ("decode", "prefill", "mixed", "beside a page-in")
PAGE_IN = "page-in alone"
PAGE_IN_EVERY = 10
"""Every so manieth scene is a page-in alone."""
ADAPTERS = ("base", "one adapter", "many adapters")


@dataclass(frozen=True)
class Scene:
    """The requests and limits that lead to one plan."""

    kind: str
    """One of KINDS: rows that all decode, only chunks of prompts, both, or rows that decode while a page-in runs; or
    PAGE_IN, which has no rows."""
    adapters: str
    """One of ADAPTERS."""
    seed: int
    prompts: tuple[int, ...]
    """Tokens of the prompt of each request that decodes when the plan is made."""
    late: tuple[int, ...]
    """Tokens of the prompts that come after those; their chunks are the plan's."""
    tokens_max: int
    """The core's limit in the plan that is timed."""
    of: tuple[int | None, ...]
    """Adapter (an index) of each request, `prompts` first; None: the base."""
    cold: int | None
    """The adapter that is paged in meanwhile."""
    skip: int
    """Plans of this kind that are let by."""


def log_uniform(random: Random, least: int, most: int) -> int:
    """A whole number whose logarithm is uniform: small ones as often as large ones."""
    return min(most, int(math.exp(random.uniform(math.log(least), math.log(most + 1)))))


def scenes(seed: str, count: int) -> list[Scene]:
    """`count` scenes, all kinds of steps equally often; another seed has others."""
    made = []
    for index in range(count):
        alone, rest = divmod(index, PAGE_IN_EVERY)
        made.append(page_in(alone) if rest == 0 else scene(f"{seed}/{index}", index - alone - 1))
    return made


def page_in(index: int) -> Scene:
    """A page-in alone."""
    adapter = ADAPTERS_MAX + index % len(PAGE_IN_RANKS)
    return Scene(PAGE_IN, "", index, (3,), (), CHUNK_MAX, (adapter,), None, 0)


def scene(name: str, index: int) -> Scene:
    """The scene of this name; `index` says of which kind."""
    random = Random(name)
    kind, adapters = KINDS[index % len(KINDS)], ADAPTERS[index // len(KINDS) % len(ADAPTERS)]
    decoding = 0 if kind == "prefill" else log_uniform(random, 1, ROWS_MAX - 4 if kind == "mixed" else ROWS_MAX)
    context = log_uniform(random, 8, CONTEXT_MAX)
    prompts = tuple(random.randint(1, context) for _ in range(decoding))
    late: tuple[int, ...] = ()
    tokens_max = CHUNK_MAX
    if kind in ("prefill", "mixed"):
        chunk = log_uniform(random, 1, CHUNK_MAX)
        tokens_max = decoding + chunk
        # one long prompt in its middle, or several that fit more or less
        longest = CONTEXT_MAX if random.random() < 0.4 else chunk
        count = min(random.randint(1, 4), chunk)
        late = tuple(random.randint(max(1, longest // 4), longest) for _ in range(count))
    return Scene(
        kind=kind,
        adapters=adapters,
        seed=random.getrandbits(32),
        prompts=prompts,
        late=late,
        tokens_max=tokens_max,
        of=assign(random, adapters, len(prompts) + len(late)),
        cold=ADAPTERS_MAX + random.randrange(len(PAGE_IN_RANKS)) if kind == "beside a page-in" else None,
        skip=random.randint(0, 3),
    )


def assign(random: Random, adapters: str, requests: int) -> tuple[int | None, ...]:
    """An adapter for each request."""
    if adapters == "base":
        return (None,) * requests
    if adapters == "one adapter":
        return (random.randrange(ADAPTERS_MAX),) * requests
    few = random.sample(range(ADAPTERS_MAX), random.randint(2, ADAPTERS_MAX))
    return tuple(None if random.random() < 0.15 else random.choice(few) for _ in range(requests))
