"""The process of another rank: does what the leader's worker does, on its share, and samples nothing.

It gets the same plans, byte for byte, so it finds the same pages, tiles and graphs. It ends when the leader is gone, in
whatever it was: a reader thread sees the end of the socket.
"""

from __future__ import annotations

import importlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from lorad import open_files
from lorad.adapters.image import MODULES, AdapterImage, make_layout
from lorad.config import EngineConfig
from lorad.engine.frames import failure_of, receive, send
from lorad.errors import EngineFailure, LoradError
from lorad.models.open import open_model
from lorad.models.shard import Shard
from lorad.models.weights import Tensors
from lorad.observe.logs import configure
from lorad.worker.gpu.collective import Collective, Group
from lorad.worker.gpu.graphs import Key
from lorad.worker.gpu.orders import (
    AddAdapter,
    Apply,
    Begin,
    Built,
    Came,
    Capture,
    DropAdapter,
    Enter,
    Entered,
    Failed,
    LogitsOf,
    Orders,
    PlanLayout,
    Run,
    to_rank,
)
from lorad.worker.gpu.others import Led, Others
from lorad.worker.page_ins import PageIn
from lorad.worker.plan import OPENED, Plan

if TYPE_CHECKING:
    from lorad.worker.gpu.worker import GpuWorker  # its kernels are the maker's to import

log = logging.getLogger("lorad.engine")

COPIED = b"."
"""On a socket of their own: a page-in's copy has ended, well or not."""


class MakePart(Protocol):
    """Makes the worker of one rank; see `cuda_worker`."""

    def __call__(
        self,
        weights: Tensors,
        config: EngineConfig,
        *,
        rank: int,
        collective: Collective,
        others: Others,
        on_progress: Callable[[str, int, int], None],
        on_page_in: Callable[[], None],
    ) -> GpuWorker: ...


def maker_of(name: str) -> MakePart:
    """What `module:function` names."""
    module, _, attribute = name.partition(":")
    found: MakePart = getattr(importlib.import_module(module), attribute)
    return found


class Following:
    """A rank's worker and what it was told."""

    def __init__(self, worker: GpuWorker, rank: int, connection: socket.socket) -> None:
        self._worker = worker
        self._rank = rank
        self._connection = connection
        self._plan: Plan | None = None
        self._ended: deque[PageIn] = deque()
        # Page-ins that have ended here, in the order of plans; the leader hasn't named them yet.

    def do(self, order: Orders, descriptor: int | None) -> None:
        """One order. Whatever it raises, this rank is out of step with the others."""
        worker = self._worker
        match order:
            case Apply(array):
                plan = self._known()
                plan.array[:] = np.frombuffer(array, dtype=np.int32)
                plan.header[OPENED] = 0  # lines are the sampler's
                worker.apply(plan, {})
            case Run():
                worker.follow(self._known())
            case LogitsOf(tokens):
                worker.follow_logits(self._known(), np.frombuffer(tokens, dtype=np.int32))
            case Enter(count):
                self._ended.extend(worker.finished_page_ins())
                send(self._connection, Entered([self._ended.popleft().error or "" for _ in range(count)]))
            case AddAdapter(adapter, tag, layout, modules):
                assert descriptor is not None
                page_bytes = worker.limits.page_bytes
                file = os.fdopen(descriptor, "rb", buffering=0)
                kinds = np.frombuffer(modules, dtype=MODULES)
                image = AdapterImage(make_layout(layout, page_bytes), page_bytes, file, kinds, self._rank)
                worker.add_adapter(adapter, tag, image)
            case DropAdapter(adapter):
                worker.drop_adapter(adapter)
            case Capture(rows, tiles):
                assert worker.graphs is not None
                worker.graphs.add(Key(rows, tiles))
            case PlanLayout(sections, length):
                self._plan = Plan(sections, length)
            case Begin():
                raise EngineFailure("a rank was begun twice", code="engine_protocol")

    def _known(self) -> Plan:
        assert self._plan is not None, "a plan's layout comes before it"
        return self._plan


def main(descriptor: int, copies_descriptor: int) -> int:
    """Serves the leader at the other ends of these sockets until it's gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open_files.allow_all()
    connection, copies = socket.socket(fileno=descriptor), socket.socket(fileno=copies_descriptor)
    begin, _ = receive(connection, to_rank)
    assert isinstance(begin, Begin)
    configure(begin.config.log_format, begin.config.log_level)
    try:
        worker = begun(begin, connection, lambda: copies.sendall(COPIED))
        send(connection, Built())
        orders: queue.SimpleQueue[tuple[Orders, int | None]] = queue.SimpleQueue()
        threading.Thread(target=read, args=(connection, orders), name="lorad-read", daemon=True).start()
        following = Following(worker, begin.rank, connection)
        while True:
            following.do(*orders.get())
    except LoradError as error:
        send(connection, Failed(failure_of(error)))
    except Exception:
        log.exception("rank %d failed", begin.rank)
    return 1


def begun(begin: Begin, connection: socket.socket, on_page_in: Callable[[], None]) -> GpuWorker:
    """The worker of a rank that isn't the first."""
    config, world = begin.config, begin.config.tensor_parallel_size
    maker = maker_of(begin.maker)
    send(connection, Came())
    group = Group(begin.backend, Path(begin.folder), begin.rank, world, exact=config.deterministic)
    weights = open_model(config.model)
    shard = Shard(weights.config, begin.rank, world)
    return maker(
        shard.weights(weights),
        config,
        rank=begin.rank,
        collective=group,
        others=Led(),
        on_progress=lambda stage, done, total: None,
        on_page_in=on_page_in,
    )


def read(connection: socket.socket, orders: queue.SimpleQueue[tuple[Orders, int | None]]) -> None:
    """The reader thread."""
    while True:
        try:
            orders.put(receive(connection, to_rank))
        except (EOFError, OSError):
            os._exit(0)


if __name__ == "__main__":
    os._exit(main(int(sys.argv[1]), int(sys.argv[2])))
