"""The loader process: reads, checks and packs one adapter after the other, for the engine at its socket's other end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from functools import partial

import msgspec

from lorad.adapters.image import LayoutSpec, spec_of
from lorad.adapters.sharded import sharded
from lorad.engine.frames import failure_of, receive, send
from lorad.engine.messages import AdapterInfo, Failure
from lorad.engine.prepared import Base, check, prepare
from lorad.errors import EngineFailure, LoradError
from lorad.lazy import set_torch_threads, torch
from lorad.models.open import open_model
from lorad.models.shard import shards_of
from lorad.models.values import values

log = logging.getLogger("lorad.engine")

NICE = 10
"""A load takes what cores have left: others' first tokens don't wait for it."""
OOM_SCORE = 800
"""When the system has no memory left, it ends this process before others: a load can be asked for again."""


class Opening(msgspec.Struct, frozen=True, tag="opening"):
    """The first message: the base whose adapters are loaded."""

    model: str
    max_lora_rank: int
    ranks: int = 1
    """That hold a part of each adapter."""


class Job(msgspec.Struct, frozen=True, tag="job"):
    """Load this adapter; answered by Loaded or Failed."""

    name: str
    path: str
    digest: str
    """Of the base, which the engine knows."""
    page_bytes: int


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The adapter; its image comes as an open file along with this message."""

    info: AdapterInfo
    tag: int
    layout: LayoutSpec
    modules: bytes
    """`AdapterImage.modules`."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Why it can't be loaded."""

    failure: Failure


OPENING = msgspec.msgpack.Decoder(Opening)
JOB = msgspec.msgpack.Decoder(Job)
ANSWER: msgspec.msgpack.Decoder[Loaded | Failed] = msgspec.msgpack.Decoder(Loaded | Failed)


def main(descriptor: int) -> None:
    """Serves the engine until it's gone."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(NICE)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(OOM_SCORE))
    connection = socket.socket(fileno=descriptor)
    opening, _ = receive(connection, OPENING)
    # What the first load would do else: seconds of import.
    set_torch_threads(1)
    torch.empty(0)
    base: Base | None = None
    while True:
        job, _ = receive(connection, JOB)
        try:
            if base is None or (base.digest, base.page_bytes) != (job.digest, job.page_bytes):
                base = _base(opening, job)
            checked = check(job.name, job.path, base)
            shards = shards_of(base.config, opening.ranks)
            prepared = prepare(checked, job.path, job.page_bytes, shards)
            part = sharded(checked, shards[0]) if shards else checked
        except LoradError as error:
            send(connection, Failed(failure_of(error)))
        except Exception:
            # Whatever an adapter folder provokes is that folder's failure.
            log.exception("loading adapter %r failed", job.name)
            failure = failure_of(EngineFailure("the adapter could not be read", code="adapter_load"))
            send(connection, Failed(failure))
        else:
            loaded = Loaded(prepared.info, prepared.tag, spec_of(part), prepared.image.modules.tobytes())
            send(connection, loaded, prepared.image.descriptor)


def _base(opening: Opening, job: Job) -> Base:
    weights = open_model(opening.model)
    if weights.digest != job.digest:
        raise EngineFailure(
            f"the base at {opening.model} isn't the one that is served any more: restart lorad", code="base_changed"
        )
    return Base(weights.config, job.digest, partial(values, weights), job.page_bytes, opening.max_lora_rank)


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except (EOFError, OSError):
        os._exit(0)  # the engine is gone
