"""What a storm is made of: names, versions of their adapters, and what each version answers."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from lorad import Engine
from lorad.models.open import open_model
from lorad.text.stream import TextStream
from make_adapter import make_adapter

NAMES, VERSIONS = 50, 3
PROMPTS, TOKENS = 4, 8
RANKS = (1, 4, 8)
MODULES = ("q_proj", "v_proj", "down_proj")
POOL_BYTES = 24 << 20
"""Room for a few of them: the others are evicted and paged in again."""


@dataclass
class World:
    """Sources on the disk, and the reference's answers."""

    base: Path
    root: Path
    prompts: list[list[int]] = field(default_factory=list)
    generations: list[str] = field(default_factory=list)
    """By content."""
    texts: dict[tuple[str, int], str] = field(default_factory=dict)
    """By generation and prompt."""
    base_digest: str = ""

    @property
    def names(self) -> list[str]:
        """All names, some of them like paths."""
        return [f"tenant/{number}" if number % 5 == 0 else f"name-{number}" for number in range(NAMES)]

    def content(self, name: int, version: int) -> int:
        """Which content a version of a name has; names share some."""
        return (name * VERSIONS + version) % len(self.generations)

    def source(self, name: int, version: int) -> str:
        """Where it is."""
        return str(self.root / f"content {self.content(name, version)}")

    def generation(self, name: int, version: int) -> str:
        """What it's reported as."""
        return self.generations[self.content(name, version)]


def make_world(base: Path, folder: Path, *, contents: int = 20, seed: int = 0) -> World:
    """Makes the adapters, and asks an engine of its own what each says, one at a time."""
    dice = random.Random(seed)
    root = folder / "root"
    root.mkdir()
    world = World(base, root)
    config = open_model(base).config
    world.prompts = [[dice.randrange(1000, 40000) for _ in range(length)] for length in (3, 17, 33, 40)]
    engine = Engine(str(base), deterministic=True, kv_cache_memory_bytes=POOL_BYTES)
    world.base_digest = engine.model_info.digest
    for content in range(contents):
        path = make_adapter(
            root / f"content {content}", config, rank=dice.choice(RANKS), modules=MODULES, seed=content, strength=1.0
        )
        generation = engine.load_adapter(f"c{content}", str(path)).generation
        world.generations.append(generation)
        _answers(world, engine, f"c{content}", generation)
        engine.unload_adapter(f"c{content}")
    _answers(world, engine, "", world.base_digest)
    engine.close()
    for prompt in range(PROMPTS):
        texts = {text for (_, asked), text in world.texts.items() if asked == prompt}
        assert len(texts) > contents * 0.9, f"prompt {prompt} tells {len(texts)} of {contents + 1} apart"
    return world


def _answers(world: World, engine: Engine, model: str, generation: str) -> None:
    for number, prompt in enumerate(world.prompts):
        request = engine.add(prompt, model, max_tokens=TOKENS, stop_token_ids=())
        while engine.step():
            pass
        stream = TextStream(engine.text_model.tokenizer, ())
        world.texts[generation, number] = "".join(map(stream.push, request.tokens)) + stream.flush()
