"""Finds tile sizes for this machine's GPU and writes them to a file that lorad reads at the start.

    make gpu-tune                       # to the data folder, for this machine
    make gpu-tune ARGS="--package"      # into the package, for all who have such a GPU

Each entry of a table is tuned at a shape that falls on it, by rotating over operands that the last cache doesn't hold.
Every candidate is held against the definition; one that doesn't compile or fit or isn't as defined is passed over.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests")]
if "--dry-run" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"
    import interpreted  # noqa: F401 - before Triton
    import interpreter_repairs  # noqa: F401

import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import Progress  # noqa: E402
from rich.table import Table  # noqa: E402

import attention_steps  # noqa: E402
from definitions import attention as attention_definition  # noqa: E402
from elsewhere import elsewhere, moved  # noqa: E402
from lorad.kernels import tuned  # noqa: E402
from lorad.kernels.attention import kernel as attention  # noqa: E402
from lorad.models.files import data_folder  # noqa: E402
from paged import Geometry  # noqa: E402
from scene import Scene  # noqa: E402
from sections.peers import make_site  # noqa: E402
from timing import copies, each_us  # noqa: E402

Timed = Callable[[], float]
"""µs of a call with the sizes that the tables have now; raises if what it computes isn't as defined."""


class Entry(NamedTuple):
    """Sizes to be found."""

    table: str
    key: tuple[Any, ...]
    timed: Timed
    candidates: list[dict[str, int]]


def entries(scene: Scene) -> Iterator[Entry]:
    """What is tuned, and how."""
    shared = [{"warps": warps, "stages": stages} for warps in (2, 4, 8) for stages in (2, 3, 4, 5)]
    outputs = [{**one, "outputs": wide} for one in shared for wide in (32, 64, 128)]
    for few_ranks, rank in ((True, 16), (False, 64)):
        for few_tokens, tokens in ((True, 32), (False, 512)):
            timed = partial(_lora, scene, rank, tokens)
            yield Entry("lora", (2, few_ranks, few_tokens), timed, outputs)
    keys = [{**one, "keys": wide} for one in shared for wide in (16, 32, 64, 128)]
    rows = [{**one, "rows": tall} for one in keys for tall in (32, 64, 128)]
    for head_dim in (64, 128, 256):
        yield Entry("attention_decode", (head_dim, 16), partial(_decode, scene, head_dim), keys)
        yield Entry("attention", (head_dim, 16), partial(_prefill, scene, head_dim), rows)


class Call:
    """Attention's module for a test's step: runs an operator on the device, and again on the same tensors there."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.again: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        operator = getattr(attention, name)

        def run(*args: Any) -> None:
            there: dict[int, Any] = {}
            self.again = partial(operator, *(moved(arg, self._scene.device, there) for arg in args))
            elsewhere(operator, self._scene.device)(*args)

        return run


class Bare(Scene):
    """Without a model and answers."""

    def __init__(self, *, dry: bool) -> None:
        self.dry = dry
        self.device = torch.device("cpu") if dry else torch.device("cuda", 0)


def _lora(scene: Scene, rank: int, tokens: int) -> float:
    inputs, widths, ranks = (32, (16, 16), [rank] * 2) if scene.dry else (4096, (4096, 1024, 1024), [rank] * 8)
    site, own = make_site(scene, inputs, widths, ranks, tokens)
    calls = own(copies(site.bytes(), scene))
    y = site.y.clone()
    calls[0](y)
    wanted = site.wanted()
    torch.testing.assert_close(y.float(), wanted, rtol=5e-3, atol=5e-3 * float(wanted.abs().max()))
    outs = [site.y.clone() for _ in calls]
    return each_us(scene, [lambda c=c, out=out: c(out) for c, out in zip(calls, outs, strict=True)]).median


def _decode(scene: Scene, head_dim: int) -> float:
    lengths = [17, 3] if scene.dry else [2048] * 32
    step, call = _step(scene, head_dim, [(length - 1, 1) for length in lengths]), Call(scene)
    step.check(step.decode(4, call), step.attend(attention_definition))
    return each_us(scene, [call.again]).median


def _prefill(scene: Scene, head_dim: int) -> float:
    step, call = _step(scene, head_dim, [(0, 20)] if scene.dry else [(0, 1024), (512, 512)]), Call(scene)
    step.check(step.attend(call), step.attend(attention_definition))
    return each_us(scene, [call.again]).median


def _step(scene: Scene, head_dim: int, rows: list[tuple[int, int]]) -> attention_steps.Step:
    heads = (2, 1) if scene.dry else (32, 8)
    return attention_steps.Step(1, Geometry(*heads, head_dim, 16, torch.bfloat16, torch.bfloat16), rows)


def best(entry: Entry, tried: Callable[[], None]) -> tuple[Any, float, float]:
    """The fastest sizes, their µs and those of the usual ones. The table has the usual ones again."""
    table = tuned.tables()[entry.table]
    usual = table[entry.key]
    found, took = usual, entry.timed()
    first = took
    try:
        for candidate in entry.candidates:
            table[entry.key] = usual._replace(**candidate)
            tried()
            try:
                us = entry.timed()
            except Exception as failure:
                Console(stderr=True).log(f"{entry.table} {candidate}: passed over, {type(failure).__name__}")
                continue
            if us < took:
                found, took = table[entry.key], us
    finally:
        table[entry.key] = usual
    return found, took, first


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", action="store_true", help="write into the package instead of the data folder")
    parser.add_argument("--out", type=Path, help="write to this folder")
    parser.add_argument("--only", nargs="+", default=[], help="of these tables")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes and two candidates each, on CPU tensors")
    arguments = parser.parse_args()
    if not arguments.dry_run and not torch.cuda.is_available():
        parser.error("no GPU can be used; --dry-run does without")
    scene = Bare(dry=arguments.dry_run)
    gpu = "dry run" if scene.dry else torch.cuda.get_device_name()
    todo = [entry for entry in entries(scene) if not arguments.only or entry.table in arguments.only]
    if scene.dry:
        todo = [entry._replace(candidates=entry.candidates[:2]) for entry in todo]
    found: tuned.Tables = {}
    table = Table(box=None, pad_edge=False)
    for head in ("table", "entry", "usual, µs", "found, µs", "sizes"):
        table.add_column(head)
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("sizes", total=sum(len(entry.candidates) for entry in todo))
        for entry in todo:
            tiles, took, first = best(entry, lambda: progress.advance(task))
            found.setdefault(entry.table, {})[entry.key] = tiles
            sizes = ", ".join(f"{name} {size}" for name, size in tiles._asdict().items())
            table.add_row(entry.table, tuned.key_text(entry.key), f"{first:.1f}", f"{took:.1f}", sizes)
    folder = arguments.out or (tuned.FOLDER if arguments.package else data_folder() / "tuned")
    path = folder / tuned.file_name(gpu)
    tuned.write(path, gpu, found)
    Console().print(table)
    Console().print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
