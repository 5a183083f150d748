"""`EngineAdapters`: which adapters an engine's core and worker know, and what names a script gave them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from lorad import _core
from lorad.adapters.checked import CheckedAdapter
from lorad.adapters.image import AdapterImage, build_image
from lorad.adapters.load import load_adapter as read_adapter
from lorad.adapters.name import check_name
from lorad.adapters.parity import check_parity
from lorad.config import EngineConfig
from lorad.engine.generations import Generations
from lorad.engine.messages import AdapterInfo
from lorad.engine.refusals import refusals
from lorad.errors import InvalidRequest, NotFound
from lorad.models.fields import shown
from lorad.models.values import values
from lorad.models.weights import Weights
from lorad.worker.worker import Worker


class PreparedAdapter(NamedTuple):
    """An adapter that was read, checked and packed, and can be registered without further waiting."""

    checked: CheckedAdapter
    image: AdapterImage
    path: str


class EngineAdapters:
    """Tells core and worker of adapters, both or neither. Not thread-safe, but for `prepare`."""

    def __init__(
        self, core: _core.Core, worker: Worker, weights: Weights, config: EngineConfig, now: Callable[[], int]
    ) -> None:
        """`now`: the core's time, in microseconds."""
        self.names: dict[str, AdapterInfo] = {}
        """What `load` was given; a server keeps its names itself."""
        self._core = core
        self._worker = worker
        self._weights = weights
        self._config = config
        self._now = now
        self._generations = Generations()
        self._gone: list[int] = []

    def prepare(self, name: str, path: str) -> PreparedAdapter:
        """Reads, checks and packs an adapter. Takes as long as the file; safe on any thread."""
        checked = read_adapter(
            name,
            path,
            self._weights.config,
            self._weights.digest,
            max_lora_rank=self._config.max_lora_rank,
            base=partial(values, self._weights),
        )
        image = build_image(checked, self._worker.geometry.page_bytes)
        check_parity(checked, image)
        return PreparedAdapter(checked, image, path)

    def register(self, prepared: PreparedAdapter) -> AdapterInfo:
        """Makes a prepared adapter servable by its generation, once more if it is already: the same content is held
        once. Each registration wants a `release`."""
        checked, image = prepared.checked, prepared.image
        held = self._generations.find(checked.generation)
        if held is None:
            with refusals():
                adapter = self._core.register(checked.tag, image.layout.pages, self._weights.config.layers)
            self._worker.add_adapter(adapter, checked.tag, image)
            held = self._generations.add(checked.generation, adapter)
        held.names += 1
        self._core.remark(f"adapter {held.adapter} is {checked.name}, {checked.generation}")
        return AdapterInfo(
            name=checked.name,
            generation=checked.generation,
            rank=checked.rank,
            modules=len(checked.modules),
            pages=image.layout.pages,
            bytes=checked.bytes,
            path=prepared.path,
            warnings=checked.warnings,
        )

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

    def named(self, name: str) -> AdapterInfo:
        """What a name means; a refusal if that's nothing."""
        if not isinstance(name, str):
            raise InvalidRequest(f"model: a name, got {shown(name)}", code="field_type", param="model")
        if name not in self.names:
            raise NotFound(f"model {shown(name)} isn't loaded", code="model_not_found", param="model")
        return self.names[name]
