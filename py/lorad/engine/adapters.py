"""`EngineAdapters`: which adapters an engine's core and worker know, and what names a script gave them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lorad import _core
from lorad.adapters.checked import CheckedAdapter
from lorad.adapters.name import check_name
from lorad.config import EngineConfig
from lorad.engine.generations import Generations
from lorad.engine.loader import Loader
from lorad.engine.messages import AdapterInfo
from lorad.engine.prepared import Base, PreparedAdapter, check, prepare
from lorad.engine.refusals import refusals
from lorad.errors import InvalidRequest, NotFound
from lorad.models.fields import shown
from lorad.models.shard import shards_of
from lorad.models.values import values
from lorad.models.weights import Weights
from lorad.worker.choose import AnyWorker


class EngineAdapters:
    """Tells core and worker of adapters, both or neither. Not thread-safe, but for `prepare`."""

    def __init__(
        self,
        core: _core.Core,
        worker: AnyWorker,
        weights: Weights,
        config: EngineConfig,
        now: Callable[[], int],
        loader: Loader | None = None,
    ) -> None:
        """`now`: the core's time, in microseconds. `loader`: what reads adapters; None: they're read here."""
        self.names: dict[str, AdapterInfo] = {}
        """What `load` was given; a server keeps its names itself."""
        self._core = core
        self._worker = worker
        self._weights = weights
        self._config = config
        self._now = now
        self._loader = loader
        self._generations = Generations()
        self._gone: list[int] = []

    def check(self, name: str, path: str) -> CheckedAdapter:
        """Reads an adapter and holds it against the base."""
        weights, limits = self._weights, (self._worker.geometry.page_bytes, self._config.max_lora_rank)
        return check(name, path, Base(weights.config, weights.digest, partial(values, weights), *limits))

    def prepare(self, name: str, path: str) -> PreparedAdapter:
        """Reads, checks and packs an adapter. Takes as long as the file; safe on any thread."""
        page_bytes = self._worker.geometry.page_bytes
        if self._loader is not None:
            return self._loader.prepare(name, path, digest=self._weights.digest, page_bytes=page_bytes)
        shards = shards_of(self._weights.config, self._config.tensor_parallel_size)
        return prepare(self.check(name, path), path, page_bytes, shards)

    def register(self, prepared: PreparedAdapter) -> AdapterInfo:
        """Makes a prepared adapter servable by its generation, once more if it is already: the same content is held
        once. Each registration wants a `release`."""
        info, tag, image = prepared
        held = self._generations.find(info.generation)
        if held is None:
            with refusals():
                adapter = self._core.register(tag, image.layout.pages, self._weights.config.layers)
            self._worker.add_adapter(adapter, tag, image)
            held = self._generations.add(info.generation, adapter)
        held.names += 1
        self._core.remark(f"adapter {held.adapter} is {info.name}, {info.generation}")
        return info

    def release(self, generation: str) -> int | None:
        """Undoes one registration. After the last one no new requests are taken; those that run end on it; then it's
        forgotten, and the number that this gave is among `gone`. None: others hold it."""
        adapter = self._generations.release(generation)
        if adapter is not None:
            self._core.unregister(self._now(), adapter)
        return adapter

    def forget(self, adapter: int) -> None:
        """The core has forgotten it."""
        self._worker.drop_adapter(adapter)
        self._generations.forget(adapter)
        self._gone.append(adapter)

    def gone(self) -> list[int]:
        """Numbers of adapters that were forgotten since the last call."""
        gone, self._gone = self._gone, []
        return gone

    def number(self, generation: str) -> int:
        """The core's number of a generation; a refusal if it takes no requests."""
        return self._generations.get(generation).adapter

    def generation(self, adapter: int) -> str | None:
        """The generation of a number, drained or not."""
        return self._generations.of(adapter)

    def pin(self, generation: str, pinned: bool) -> None:
        """Keeps a generation in pages, for one of its registrations; it's unpinned when the last one gives that up."""
        held = self._generations.get(generation)
        pins = max(held.pins + (1 if pinned else -1), 0)
        if (pins > 0) != (held.pins > 0):
            with refusals():
                self._core.pin(self._now(), held.adapter, pinned)
        held.pins = pins

    def prewarm(self, generation: str) -> None:
        """Pages a generation in as soon as there is room that nobody uses."""
        with refusals():
            self._core.prewarm(self._now(), self.number(generation))

    def load(self, name: str, path: str) -> AdapterInfo:
        """Prepares and registers an adapter under `name`, in place of what that meant."""
        info = self.register(self.prepare(check_name(name), path))
        before = self.names.get(name)
        self.names[name] = info
        if before is not None:
            self.release(before.generation)
        return info

    def unload(self, name: str) -> None:
        """Takes the name away."""
        self.release(self.named(name).generation)
        del self.names[name]

    def named(self, name: str, *, param: str = "model") -> AdapterInfo:
        """What a name means; a refusal if that's nothing. `param`: whose name it is, for refusals."""
        if not isinstance(name, str):
            raise InvalidRequest(f"{param}: a name, got {shown(name)}", code="field_type", param=param)
        if name not in self.names:
            raise NotFound(f"model {shown(name)} isn't loaded", code="model_not_found", param=param)
        return self.names[name]
