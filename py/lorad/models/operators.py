"""Which operator multiplies a weight, by its shape and by rows: timed once on this machine and kept on disk.

lorad's own operator reads a weight of floats as it's stored; torch's need a form of their own in memory. Which is
fastest depends on rows, number type and CPU by up to a factor of ten, so it's measured, for a few numbers of rows, with
copies that don't fit the CPU's caches together. A second form is kept only where it saves a tenth of the time.
Quantised weights have one form and, on CPUs with tiles, two operators.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from lorad import __version__, _core
from lorad.lazy import torch
from lorad.models.files import data_folder
from lorad.models.forms import F32, FORMS, QUANT_FORMS, Linear, Tiles, has_tiles, torch_has_bf16
from lorad.models.products import MatrixKind
from lorad.models.timings import Times, Timings

ROWS = (1, 4, 16, 32, 64, 256)
"""Numbers of rows that are timed; others take the choice of the next smaller one."""
SMALL = 1 << 18
"""Weights with fewer elements aren't timed: lorad's own operator has the least to do beside the product."""
COLD_BYTES = 48 << 20
COLD_QUANT_BYTES = 8 << 20
"""Of quantised weights, whose products with many rows are bound by computing."""
SECONDS = 0.02
"""For each operator and number of rows, and at least three calls."""
WORTH = 0.9
"""A second form must take less than this share of the first one's time for some number of rows."""


class Choice(NamedTuple):
    """The operator for each of ROWS."""

    names: tuple[str, ...]

    @property
    def forms(self) -> frozenset[str]:
        """The forms that must be in memory."""
        return frozenset(self.names)


OWN = Choice(("own",) * len(ROWS))


class Operators:
    """The choices of an engine. `deterministic` and small weights take lorad's own operator, unseen."""

    def __init__(
        self,
        *,
        deterministic: bool = False,
        one_copy: bool = False,
        file: Path | None = None,
        on_measure: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_measure` is called before each measurement, which takes a second or so."""
        self._deterministic, self._one_copy, self._on_measure = deterministic, one_copy, on_measure
        self.timings = Timings(file or data_folder() / "operators.json", len(ROWS))

    def choose(self, element: str, rows: int, cols: int, *, fine: bool = False) -> Choice:
        """For a weight [rows, cols] of `element`: f32, f16, bf16 or one of QUANT_KINDS, these perhaps `fine`."""
        if not self._timed(element, rows, cols):
            return OWN
        times = self.times(element, rows, cols, fine=fine)
        return fastest(times, one_copy=self._one_copy)

    def times(self, element: str, rows: int, cols: int, *, fine: bool = False) -> Times:
        """µs of each operator for each of ROWS, measured now unless this machine has measured them before."""
        name, machine = _name(element, rows, cols, fine), machine_name()
        found = self.timings.find(machine, name, candidates(element))
        if found is None:
            self._on_measure()
            found = measure(element, rows, cols, fine=fine)
            self.timings.add(machine, name, found)
        return found

    def unknown(self, kinds: Iterable[MatrixKind]) -> int:
        """How many of these will have to be measured."""
        known = self.known()
        return sum(self._timed(*kind[:3]) and _name(*kind) not in known for kind in kinds)

    def _timed(self, element: str, rows: int, cols: int) -> bool:
        return not self._deterministic and rows * cols >= SMALL and len(candidates(element)) > 1

    def known(self) -> dict[str, Times]:
        """What was measured on this machine and is used, by weight."""
        found = self.timings.of(machine_name())
        return {weight: times for weight, times in found.items() if times.keys() == {*candidates(weight.split(" ")[0])}}


def _name(element: str, rows: int, cols: int, fine: bool) -> str:
    return f"{element} {rows}x{cols}" + " fine" * fine


def fastest(times: Mapping[str, Sequence[float]], *, one_copy: bool) -> Choice:
    """The operators to take: one with the least relative time over all ROWS, and others where they are worth a form."""
    best = [min(column) for column in zip(*times.values(), strict=True)]
    score = {name: sum(us / least for us, least in zip(row, best, strict=True)) for name, row in times.items()}
    first = min(score, key=lambda name: (score[name], name))
    names = [first] * len(ROWS)
    if not one_copy:
        for index in range(len(ROWS)):
            other = min(times, key=lambda name: (times[name][index], name))
            if times[other][index] < WORTH * times[first][index]:
                names[index] = other
    return Choice(tuple(names))


def measure(element: str, rows: int, cols: int, *, fine: bool = False) -> Times:
    """µs of each operator for each of ROWS, medians; the operators take turns."""
    quantised = element in _core.QUANT_KINDS
    sides = _quantised(element, rows, cols, fine) if quantised else _floats(element, rows, cols)
    random = np.random.default_rng(0)
    found: dict[str, list[float]] = {name: [] for name in sides}
    for n in ROWS:
        x: F32 = random.standard_normal((n, cols), dtype=np.float32)
        y: F32 = np.empty((n, rows), dtype=np.float32)
        for name, times in _turns(sides, x, y).items():
            found[name].append(round(sorted(times)[len(times) // 2] * 1e6, 1))
    return found


def _floats(element: str, rows: int, cols: int) -> dict[str, list[Linear]]:
    kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[element]
    weight = torch.randn((rows, cols), generator=torch.Generator().manual_seed(0)).to(kind)
    copies = max(2, -(-COLD_BYTES // (weight.numel() * weight.element_size())))
    return {name: [FORMS[name](weight.clone()) for _ in range(copies)] for name in candidates(element)}


def _quantised(kind: str, rows: int, cols: int, fine: bool) -> dict[str, list[Linear]]:
    columns, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    zeros = np.zeros(rows * cols // columns * block_bytes, dtype=np.uint8)
    copies = max(2, -(-COLD_QUANT_BYTES // zeros.nbytes))
    matrices = [_core.QuantMatrix(kind, zeros, rows, cols, fine=fine) for _ in range(copies)]
    return {name: [QUANT_FORMS[name](matrix) for matrix in matrices] for name in candidates(kind)}


def candidates(element: str) -> list[str]:
    """The operators for such weights. bf16 only pays where the CPU has instructions for it."""
    if element in _core.QUANT_KINDS:
        return [name for name in QUANT_FORMS if QUANT_FORMS[name] is not Tiles or has_tiles()]
    return [name for name in FORMS if name != "torch_bf16" or (element == "bf16" and torch_has_bf16())]


def _turns(sides: Mapping[str, Sequence[Linear]], x: F32, y: F32) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in sides}
    for copies in sides.values():
        copies[0](y, x)
    turn = 0
    while turn < 3 or sum(map(sum, times.values())) < SECONDS * len(sides):
        for name, copies in sides.items():
            call: Callable[[F32, F32], None] = copies[turn % len(copies)]
            begin = time.perf_counter()
            call(y, x)
            times[name].append(time.perf_counter() - begin)
        turn += 1
    return times


def machine_name() -> str:
    """What the times hold for: CPU, instruction level, threads, versions."""
    features = _core.cpu_features()
    has = " ".join(sorted(name for name, present in features.items() if present is True))
    return (
        f"{cpu_model()}; {has}; level {features['level']}; {_core.threads()} threads; "
        f"torch {version('torch')}; lorad {__version__}"
    )


def cpu_model() -> str:
    """The CPU's name, as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return "unknown CPU"
