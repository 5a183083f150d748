"""What sides run on: the base with every adapter, the merged model; in process, and behind servers if asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from lorad.adapters.merge import merge
from lorad.bench.adapters import write_random
from lorad.bench.run import NameOf, Run, run
from lorad.bench.served import served
from lorad.bench.side import Level, Side
from lorad.bench.streams import run_streams
from lorad.bench.traffic import Ask, Traffic, asks
from lorad.config import EngineConfig
from lorad.engine.engine import Engine

WARM = [1, 2, 3]
"""A prompt that brings an adapter into pages."""
OnStage = Callable[[str], None]


class Rig:
    """Models by level. `stack` ends its engines and servers."""

    def __init__(self, config: EngineConfig, folder: Path, stack: ExitStack, on_stage: OnStage) -> None:
        """Loads the base in process; `folder` is for adapters, the merged model and what servers say."""
        self.engine = Engine(config=config)
        stack.enter_context(closing(self.engine))
        self._sizes: dict[str, int] = {}
        self._config, self._folder, self._stack, self._on_stage = config, folder, stack, on_stage
        self._names: dict[int, list[str]] = {}
        self._paths: dict[str, Path] = {}
        self._runs: dict[tuple[Level, bool], Callable[[Sequence[Ask], NameOf], Run]] = {}
        """By level, and whether it's the merged model."""
        self._runs["engine", False] = partial(run, self.engine)

    def load(self, counts: Mapping[int, int]) -> None:
        """Writes and loads so many random adapters of each rank."""
        for rank, count in counts.items():
            self._names[rank] = [f"r{rank}-{number}" for number in range(count)]
            for number, name in enumerate(self._names[rank]):
                self._on_stage(f"adapter {name}")
                self._paths[name] = write_random(self._folder / name, self.engine.weights.config, rank, number)
                self._sizes[name] = self.engine.load_adapter(name, str(self._paths[name])).bytes

    def serve(self) -> None:
        """Starts a server for the base and its adapters."""
        self._serve(self.engine.weights.path, self._paths, merged=False)

    def merge(self, rank: int, *, serve: bool) -> None:
        """Merges the first adapter of this rank and loads the model that this gives."""
        self._on_stage("merging an adapter into the base")
        name = self._names[rank][0]
        folder = self._folder / "merged"
        folder.mkdir()
        checked = self.engine.check_adapter(name, str(self._paths[name]))
        path = merge(self.engine.weights, checked, folder)
        self._on_stage("loading the merged model")
        engine = Engine(config=replace(self._config, model=str(path), trace_file=""))
        self._stack.enter_context(closing(engine))
        self._runs["engine", True] = partial(run, engine)
        if serve:
            self._serve(path, {}, merged=True)

    def _serve(self, model: Path, adapters: Mapping[str, Path], *, merged: bool) -> None:
        self._on_stage("starting a server for the merged model" if merged else "starting a server")
        log = self._folder / ("merged.log" if merged else "base.log")
        address = self._stack.enter_context(served(replace(self._config, model=str(model)), adapters, log))
        self._runs["server", merged] = partial(run_streams, address)

    def asks(self, side: Side, traffic: Traffic) -> list[Ask]:
        """What this side is asked."""
        return asks(traffic, max(side.distinct, 1), self.engine.weights.config.vocab)

    def adapter_bytes(self, side: Side, made: Sequence[Ask]) -> int:
        """Of the adapters that these requests are for."""
        return sum(self._sizes[self._name_of(side)(index)] for index in {ask.adapter for ask in made})

    def measure(self, side: Side, traffic: Traffic) -> Run:
        """One run, after all adapters of the side are in pages."""
        ask = self._runs[side.level, side.name == "merged"]
        ask([Ask(0.0, index, WARM, 2) for index in range(max(side.distinct, 1))], self._name_of(side))
        return ask(self.asks(side, traffic), self._name_of(side))

    def _name_of(self, side: Side) -> NameOf:
        return lambda index: self._names[side.rank][index] if side.distinct else ""
