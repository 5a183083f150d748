"""`Leader`: the other ranks from the first one's side. It starts them, tells them what its worker does, and notices
when one is gone."""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from lorad.adapters.image import AdapterImage
from lorad.adapters.unpack import spec_of_image
from lorad.config import EngineConfig
from lorad.engine.child import environment, how_it_ended
from lorad.engine.frames import error_of, receive, send
from lorad.errors import EngineLost
from lorad.models.shard import ShardConfig
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
    Order,
    PlanLayout,
    Run,
    to_leader,
)
from lorad.worker.page_ins import PageIn
from lorad.worker.plan import Ints, Plan

log = logging.getLogger("lorad.engine")

START_SECONDS = 600.0
"""How long a rank may take to read its share of the weights."""
ANSWER_SECONDS = 120.0
"""How long it may take to do what it was told before; a step is far shorter."""
COPY_SECONDS = 600.0
"""Likewise for a page-in, whose bytes may come from a slow disk."""
NOTICE_SECONDS = 5.0
"""How soon after a failed sum a rank that has caused it is known to be gone."""
END_SECONDS = 5.0


class Rank(NamedTuple):
    """One of the others."""

    number: int
    process: subprocess.Popen[bytes]
    orders: socket.socket
    copies: socket.socket
    """A byte for each page-in whose copy has ended there."""


class Leader:
    """`Others` of the first rank. Its worker's thread tells; the copying thread waits for copies; a thread for each
    rank waits for its end."""

    leads, alone = True, False

    def __init__(
        self, config: EngineConfig, shape: ShardConfig, *, backend: str, maker: str, on_lost: Callable[[], None]
    ) -> None:
        """Starts the processes and waits until they have begun. `shape`: of each rank's share. `backend`: of
        torch.distributed. `maker`: see `Begin`. `on_lost`: called when a rank is gone, on any thread."""
        self.lost: EngineLost | None = None
        self._shape = shape
        self._on_lost = on_lost
        self._folder = tempfile.TemporaryDirectory(prefix="lorad-ranks-")
        self._lock = threading.Lock()
        self._noticed = threading.Event()
        self._closed = False
        self._built = False
        self._plan_known = False
        self._ranks: list[Rank] = []
        try:
            for number in range(1, config.tensor_parallel_size):
                self._ranks.append(self._start(number, Begin(config, number, str(self.folder), backend, maker)))
            for rank in self._ranks:
                threading.Thread(
                    target=self._watch, args=(rank,), name=f"lorad-rank-{rank.number}", daemon=True
                ).start()
            for rank in self._ranks:
                self._answer(rank, Came, START_SECONDS)
        except BaseException:
            self.close()
            raise

    @property
    def folder(self) -> Path:
        """Where ranks find one another; others than this user's processes can't look into it."""
        return Path(self._folder.name)

    @property
    def pids(self) -> list[int]:
        """Of the processes, from rank 1 on."""
        return [rank.process.pid for rank in self._ranks]

    # Others

    def add_adapter(self, adapter: int, tag: int, image: AdapterImage) -> None:
        """See `Others`."""
        order = AddAdapter(adapter, tag, spec_of_image(image, self._shape), image.modules.tobytes())
        self._tell(order, image.descriptor)

    def drop_adapter(self, adapter: int) -> None:
        """See `Others`."""
        self._tell(DropAdapter(adapter))

    def capture(self, key: Key) -> None:
        """See `Others`."""
        self._tell(Capture(*key))

    def apply(self, plan: Plan) -> None:
        """See `Others`."""
        if not self._plan_known:
            self._tell(PlanLayout(plan.layout, len(plan.array)))
            self._plan_known = True
        self._tell(Apply(plan.array.tobytes()))

    def run(self) -> None:
        """See `Others`."""
        self._tell(Run())

    def logits_of(self, tokens: Ints) -> None:
        """See `Others`."""
        self._tell(LogitsOf(tokens.tobytes()))

    def wait_for_copy(self) -> None:
        """See `Others`."""
        for rank in self._ranks:
            try:
                ended = rank.copies.recv(1)
            except TimeoutError:
                raise self._lose(f"rank {rank.number} has not copied an adapter for {COPY_SECONDS:g} s") from None
            except OSError:
                ended = b""
            if not ended:
                raise self._gone(rank)

    def entered(self, done: list[PageIn]) -> list[PageIn]:
        """See `Others`."""
        if not done:
            return done
        self._tell(Enter(len(done)))
        for rank in self._ranks:
            answer = self._answer(rank, Entered, ANSWER_SECONDS)
            done = [
                end._replace(error=f"rank {rank.number}: {error}") if error and end.error is None else end
                for end, error in zip(done, answer.errors, strict=True)
            ]
        return done

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """See `Others`."""
        try:
            yield
        except EngineLost:
            raise
        except Exception as failure:
            # A rank that has died ends everybody's sums; that it has is known a moment later.
            self._noticed.wait(NOTICE_SECONDS)
            raise self._lose(f"what all ranks do failed: {type(failure).__name__}: {failure}") from failure

    def close(self) -> None:
        """Ends the processes: they see the end of their sockets."""
        self._closed = True
        for rank in self._ranks:
            for connection in (rank.orders, rank.copies):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for rank in self._ranks:
            try:
                rank.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                rank.process.kill()
                rank.process.wait()
            rank.orders.close()
            rank.copies.close()
        self._folder.cleanup()

    # inside

    def wait_until_built(self) -> None:
        """Until each has its worker; before it's told anything. A refusal of its start is raised here."""
        if not self._built:
            for rank in self._ranks:
                self._answer(rank, Built, START_SECONDS)
            self._built = True

    def _start(self, number: int, begin: Begin) -> Rank:
        orders, their_orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        copies, their_copies = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with their_orders, their_copies:
            theirs = their_orders.fileno(), their_copies.fileno()
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "lorad.worker.gpu.rank", *map(str, theirs)],
                pass_fds=theirs,
                stdin=subprocess.DEVNULL,
                env=environment(),
            )
        copies.settimeout(COPY_SECONDS)
        orders.settimeout(ANSWER_SECONDS)
        send(orders, begin)
        return Rank(number, process, orders, copies)

    def _tell(self, order: Order, descriptor: int | None = None) -> None:
        self.wait_until_built()
        if self.lost is not None:
            raise self.lost
        for rank in self._ranks:
            try:
                send(rank.orders, order, descriptor)
            except TimeoutError:
                raise self._silent(rank, ANSWER_SECONDS) from None
            except OSError:
                raise self._gone(rank) from None

    def _answer(self, rank: Rank, kind: type[Kind], seconds: float) -> Kind:
        rank.orders.settimeout(seconds)
        try:
            answer, _ = receive(rank.orders, to_leader)
        except TimeoutError:
            raise self._silent(rank, seconds) from None
        except (OSError, EOFError):
            raise self._gone(rank) from None
        finally:
            rank.orders.settimeout(ANSWER_SECONDS)
        if isinstance(answer, Failed):
            raise error_of(answer.failure)
        assert isinstance(answer, kind), answer
        return answer

    def _watch(self, rank: Rank) -> None:
        """The thread that waits for a rank's end."""
        code = rank.process.wait()
        if not self._closed:
            self._lose(f"rank {rank.number} {how_it_ended(code)}")

    def _silent(self, rank: Rank, seconds: float) -> EngineLost:
        return self._lose(f"rank {rank.number} has not answered for {seconds:g} s")

    def _gone(self, rank: Rank) -> EngineLost:
        try:
            code = rank.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return self._lose(f"rank {rank.number} has closed its socket")
        return self._lose(f"rank {rank.number} {how_it_ended(code)}")

    def _lose(self, why: str) -> EngineLost:
        """There's no going on: ends the other ranks, so that nobody waits for a sum. The first reason stays."""
        with self._lock:
            first = self.lost is None and not self._closed
            if self.lost is None:
                self.lost = EngineLost(f"the engine can't go on: {why}", code="rank_lost")
        if first:
            log.error("%s", why)
            for rank in self._ranks:
                rank.process.kill()
            self._noticed.set()
            self._on_lost()
        return self.lost


Kind = TypeVar("Kind", Came, Built, Entered)
