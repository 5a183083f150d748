"""An engine in messages: its base model, and its counters at a moment."""

from __future__ import annotations

from typing import Any

from lorad.engine.adapters import EngineAdapters
from lorad.engine.messages import AdapterStats, ModelInfo, Stats, TenantStats
from lorad.models.weights import Weights
from lorad.observe.memory import resident_bytes
from lorad.worker.choose import AnyWorker


def model_info(weights: Weights, worker: AnyWorker) -> ModelInfo:
    """The base model, as a front needs to know it."""
    config, geometry = weights.config, worker.geometry
    return ModelInfo(
        architecture=config.architecture,
        digest=weights.digest,
        vocab_size=config.vocab,
        context_length=worker.limits.sequence_tokens,
        dtype=worker.dtype,
        layers=config.layers,
        weights_bytes=worker.model.bytes,
        pages=worker.limits.pages,
        page_tokens=geometry.page_tokens,
        page_bytes=geometry.page_bytes,
        context_limit=worker.limits.sequence_limit,
    )


def stats(found: dict[str, Any], worker: AnyWorker, adapters: EngineAdapters, steps: int) -> Stats:
    """Of what the core counts (`found`), the worker's page-ins and the process."""
    return Stats(
        call=0,
        running=found["running"],
        waiting=found["waiting"],
        pages_total=found["pages"],
        pages_free=found["pages_free"],
        pages_sequences=found["pages_sequences"],
        pages_adapters=found["pages_adapters"],
        pages_cached=found["pages_cached"],
        preemptions=found["preemptions"],
        evictions=found["evictions"],
        page_ins=found["page_ins"],
        page_in_bytes=worker.page_ins.bytes,
        page_in_seconds=worker.page_ins.seconds,
        steps=steps,
        adapters={
            generation: AdapterStats(*values)
            for adapter, values in sorted(found["adapters"].items())
            if (generation := adapters.generation(adapter)) is not None
        },
        tenants={number: TenantStats(*values) for number, values in found["tenants"].items()},
        page_ins_failed=found["page_ins_failed"],
        page_in_counts=tuple(worker.page_ins.counts),
        resident_bytes=resident_bytes(),
    )
