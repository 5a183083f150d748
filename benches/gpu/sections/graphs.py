"""Graphs while adapters come and go: none is captured again, every answer stays the reference's."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from lorad import Engine
from lorad.kernels.launch import launching
from lorad.kernels.launch import run as start
from report import Report
from scene import Scene

ADAPTERS = 64
LOADS = 10_000
SECONDS = 90
ROWS = 8
TOKENS = 4
FILE = "adapter_model.safetensors"


def run(scene: Scene, report: Report) -> None:
    _same_kernels(scene, report)
    with TemporaryDirectory() as folder:
        _come_and_go(scene, report, Path(folder))


def _same_kernels(scene: Scene, report: Report) -> None:
    """What rows of the base start: in an engine without adapters, and beside adapters that are in pages."""
    prompt = scene.answers[0].prompt
    options: dict[str, Any] = {
        "enforce_eager": True,
        "kv_cache_memory_bytes": 128 << 20,
        "enable_prefix_caching": False,
    }
    with closing(scene.engine(scene.model, **options)) as bare:
        wanted = _started(bare, prompt, "")
    with closing(scene.engine(scene.model, scene.adapters, **options)) as engine:
        own = _started(engine, prompt, next(iter(scene.adapters)))
        got = _started(engine, prompt, "")
    report.must("rows of the base start what they start without LoRA", got == wanted, f"{len(got)} of our kernels")
    report.must("rows of an adapter start more", len(own) > len(wanted), f"{len(own)} of our kernels")


def _started(engine: Engine, prompt: list[int], model: str) -> list[str]:
    """Names of the kernels of an answer of three tokens, in order."""
    names: list[str] = []

    def launch(kernel: Any, grid: tuple[int, ...] | None, args: tuple[Any, ...], meta: Mapping[str, Any]) -> None:
        names.append(kernel.__name__)
        start(kernel, grid, args, meta)

    with launching(launch):
        request = engine.add(prompt, model, max_tokens=3, stop_token_ids=())
        while engine.step():
            pass
    assert request.finish == "length", request.error
    return names


def _come_and_go(scene: Scene, report: Report, folder: Path) -> None:
    """Adapters of several ranks, of which a few fit at a time, asked at random."""
    count, loads = (6, 8) if scene.dry else (ADAPTERS, LOADS)
    kinds = list(scene.adapters)
    names = {f"{kinds[number % len(kinds)]}-{number}": kinds[number % len(kinds)] for number in range(count)}
    paths = {
        name: _shuffled(scene.adapters[kind], folder / name, seed) for seed, (name, kind) in enumerate(names.items())
    }
    few = 3 * max(sum(file.stat().st_size for file in path.iterdir()) for path in scene.adapters.values())
    engine = scene.engine(
        scene.model,
        paths,
        dtype="float32",
        max_num_seqs=2 if scene.dry else ROWS,
        kv_cache_memory_bytes=few if scene.dry else few + (16 << 20),
        max_model_len=256,
        enable_prefix_caching=False,
    )
    graphs: Any = engine.worker.graphs
    while graphs.pending:
        graphs.capture(60)
    captured, dice = graphs.captures, Random(0)
    answers = {kind: [answer for answer in scene.answers if answer.adapter == kind] for kind in ("", *kinds)}
    names[""] = ""
    wrong = asked_in_all = 0
    began = time.monotonic()
    while engine.stats().page_ins < loads and time.monotonic() - began < SECONDS:
        asked = []
        for name in dice.sample(list(names), 2 if scene.dry else ROWS):
            answer = dice.choice(answers[names[name]])
            request = engine.add(answer.prompt, name, max_tokens=TOKENS, stop_token_ids=())
            asked.append((request, answer.tokens[:TOKENS]))
        while engine.step():
            pass
        wrong += sum(request.tokens[: len(tokens)] != tokens for request, tokens in asked)
        asked_in_all += len(asked)
    stats = engine.stats()
    engine.close()
    said = f"{stats.page_ins} page-ins and {stats.evictions} evictions of {count} adapters"
    report.must("as many adapters came and went as were to", stats.page_ins >= loads and stats.evictions > 0, said)
    report.must(
        "no graph was captured again",
        graphs.captures == captured,
        f"{captured} graphs, {graphs.replays} replays",
    )
    report.must("every answer is the reference's", wrong == 0, f"{asked_in_all - wrong} of {asked_in_all}")


def _shuffled(adapter: Path, to: Path, seed: int) -> Path:
    """An adapter that computes the same of other bytes: its rank rows in another order."""
    to.mkdir()
    (to / "adapter_config.json").write_bytes((adapter / "adapter_config.json").read_bytes())
    random = torch.Generator().manual_seed(seed)
    tensors = load_file(adapter / FILE)
    for key in [key for key in tensors if ".lora_A." in key]:
        order = torch.randperm(len(tensors[key]), generator=random)
        other = key.replace(".lora_A.", ".lora_B.")
        tensors[key], tensors[other] = tensors[key][order].contiguous(), tensors[other][:, order].contiguous()
    save_file(tensors, to / FILE, metadata={"format": "pt"})
    return to
