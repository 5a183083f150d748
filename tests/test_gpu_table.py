"""The device table as the host writes it: all that a layout has is found again through runs, whatever came and went."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from lorad import _core
from lorad.adapters.image import MODULES
from lorad.kernels.lora.table import BIASES_SHIFT, ELEMENTS, EVEN_PAGE_BYTES, GAINS_SHIFT, LINE_BYTES
from lorad.worker.gpu.ranges import Ranges
from lorad.worker.gpu.runs import PARTS, Chunks, chunks_of, runs_for, runs_of
from lorad.worker.gpu.table import RunsFull, SlotTable

LAYERS, IN_LAYER = 3, 4


class Adapter(NamedTuple):
    """A random one."""

    layout: _core.AdapterLayout
    modules: np.ndarray
    chunks: Chunks


def random_adapter(rng: np.random.Generator, page_bytes: int, widths: list[int]) -> Adapter:
    """Some modules of some layers, of a rank up to 40; some have vectors, some nothing else."""
    places = [(layer, module) for layer in range(LAYERS) for module in range(IN_LAYER) if rng.random() < 0.6] or [
        (1, 2)
    ]
    gains, biases = ({place for place in places if rng.random() < 0.4} for _ in range(2))
    shapes = []
    for layer, module in rng.permutation(places).tolist():
        rank = int(rng.choice([0, 1, 5, 8, 9, 24, 40]))
        if (layer, module) not in gains | biases:
            rank = max(rank, 1)
        shapes.append((layer, module, *rng.choice(widths, 2).tolist(), rank, float(rng.random())))
    layout = _core.AdapterLayout(page_bytes, str(rng.choice(ELEMENTS)), shapes, gains=gains, biases=biases)
    modules = np.array([(layer, module, scale) for layer, module, *_, scale in shapes], dtype=MODULES)
    return Adapter(layout, modules, chunks_of(layout, modules, IN_LAYER))


def scattered(rng: np.random.Generator, free: list[int], count: int) -> np.ndarray:
    """Takes `count` pages, many of them neighbours."""
    if rng.random() < 0.5:
        free.sort()
    else:
        rng.shuffle(free)
    taken, free[:] = free[:count], free[count:]
    return np.array(taken, dtype=np.int32)


def elements_of(table: SlotTable, slot: int, layer: int, module: int) -> tuple[int, dict[str, dict]]:
    """(kind, of each part: (rank row, column) to address), through the tensors of the device."""
    first, a, b, word = table.table.spans[slot, layer * IN_LAYER + module].tolist()
    kind, found, at = word & 0xF, {}, first
    for part, count in zip(PARTS, (a, b, word >> GAINS_SHIFT & 0xFFF, word >> BIASES_SHIFT), strict=True):
        size = 2 if part in ("a", "b") and ELEMENTS[kind] != "f32" else 4
        found[part] = {}
        last = -1
        for address, rank, begin, length in table.table.runs[at : at + count].tolist():
            rows = rank >> 16
            assert rows and length and (rank & 0xFFFF) >= last, "runs are in the order of ranks"
            last = rank & 0xFFFF
            if part in ("a", "b"):
                assert last + rows <= 40
            for row in range(rows):
                for column in range(length):
                    key = last + row, begin + column
                    assert key not in found[part]
                    found[part][key] = address * LINE_BYTES + (row * length + column) * size
        at += count
    return kind, found


def check(table: SlotTable, slot: int, tag: int, adapter: Adapter, pages: np.ndarray) -> None:
    """That the slot tells where each element lies, and that it's this adapter's."""
    assert table.table.tags[slot].item() & 0xFFFFFFFF == tag
    scale_of = {(layer, module): scale for layer, module, scale in adapter.modules.tolist()}
    for layer in range(LAYERS):
        for module in range(IN_LAYER):
            wanted: dict[str, dict] = {part: {} for part in PARTS}
            for page, offset, part, rank, rows, begin, length in adapter.layout.chunks(layer, module):
                size = 2 if part in ("a", "b") and adapter.layout.element != "f32" else 4
                base = int(pages[page]) * table.page_bytes + offset
                for row in range(rows):
                    for column in range(length):
                        wanted[part][rank + row, begin + column] = base + (row * length + column) * size
            kind, found = elements_of(table, slot, layer, module)
            assert found == wanted
            place = layer * IN_LAYER + module
            assert table.table.scales[slot, place].item() == pytest.approx(scale_of.get((layer, module), 0.0))
            if any(wanted.values()):
                assert ELEMENTS[kind] == adapter.layout.element
            else:
                assert not table.table.spans[slot, place].any()


@pytest.mark.parametrize("seed", range(8))
def test_sets_and_clears(seed: int) -> None:
    """With few runs, so that they're moved together now and then, and refused."""
    rng = np.random.default_rng(seed)
    page_bytes = int(rng.choice([64, 256, 1024]))
    widths = [[3, 16, 20], [16, 48, 64]][seed % 2]
    table = SlotTable(6, LAYERS, IN_LAYER, int(rng.choice([150, 400, 1500])), page_bytes, "cpu")
    addresses = [tensor.data_ptr() for tensor in table.table[:4]]
    free = list(range(20_000))
    held: dict[int, tuple[int, Adapter, np.ndarray]] = {}
    sets = refused = 0
    for step in range(30):
        slot = int(rng.integers(0, 6))
        if slot in held:
            table.clear(slot)
            free += held.pop(slot)[2].tolist()
            assert table.table.tags[slot] == 0
        else:
            adapter, tag = random_adapter(rng, page_bytes, widths), int(rng.integers(1, 1 << 32))
            pages = scattered(rng, free, adapter.layout.pages)
            try:
                table.set(slot, tag, adapter.chunks, pages)
                held[slot] = tag, adapter, pages
                sets += 1
            except RunsFull:
                refused += 1
                needed = len(runs_of(adapter.chunks, pages, page_bytes).runs)
                assert needed > table.runs_free and table.table.tags[slot] == 0
                free += pages.tolist()
        if step % 5 == 4:
            for other, (tag, adapter, pages) in held.items():
                check(table, other, tag, adapter, pages)
    for slot in held:
        table.clear(slot)
    assert table.runs_free == len(table.table.runs) and not table.table.tags.any()
    assert addresses == [tensor.data_ptr() for tensor in table.table[:4]]


def test_free_runs_are_moved_together() -> None:
    """Where there are enough, but none as many behind one another."""
    rng = np.random.default_rng(3)
    adapter = random_adapter(rng, 1024, [16, 48])
    pages = np.arange(adapter.layout.pages, dtype=np.int32) * 3
    need = len(runs_of(adapter.chunks, pages, 1024).runs)
    small = _core.AdapterLayout(1024, "f32", [(0, 0, 4, 4, 1, 1.0)])
    little = chunks_of(small, np.array([(0, 0, 1.0)], dtype=MODULES), IN_LAYER)
    table = SlotTable(10, LAYERS, IN_LAYER, need + 4 + need // 2, 1024, "cpu")
    table.set(0, 1, adapter.chunks, pages)
    table.set(1, 2, little, np.array([1], dtype=np.int32))
    table.clear(0)
    table.set(2, 3, little, np.array([4], dtype=np.int32))  # at the front of what was slot 0's
    table.set(3, 4, adapter.chunks, pages + 1000)
    check(table, 3, 4, adapter, pages + 1000)
    for slot, page in ((1, 1), (2, 4)):
        check(table, slot, slot + 1, Adapter(small, np.array([(0, 0, 1.0)], dtype=MODULES), little), np.array([page]))


@pytest.mark.parametrize("seed", range(20))
def test_runs_are_bounded_and_cut_as_kernels_expect(seed: int) -> None:
    rng = np.random.default_rng(seed)
    page_bytes = int(rng.choice([64, 192, 512, 2048, 8192]))
    widths = [[3, 17, 90, 201], [4, 20, 100], [16, 48, 1040]][seed % 3]
    total, pages, slots = 0, 0, 5
    for _ in range(slots):
        adapter = random_adapter(rng, page_bytes, widths)
        runs = runs_of(adapter.chunks, rng.permutation(adapter.layout.pages).astype(np.int32), page_bytes).runs
        total, pages = total + len(runs), pages + adapter.layout.pages
        if page_bytes >= EVEN_PAGE_BYTES and seed % 3 == 2:
            assert not (runs[:, 2:] % 16).any()
    whole = all(width % 4 == 0 for width in widths)
    assert total <= runs_for(slots, LAYERS * IN_LAYER, pages, rank_max=40, whole_lines=whole)


def test_tiles_in_neighbouring_pages_are_one_run() -> None:
    """Two tiles of A fill a page each: [8, 64] in 16 bits."""
    layout = _core.AdapterLayout(1024, "bf16", [(0, 0, 64, 64, 16, 1.0)])
    chunks = chunks_of(layout, np.array([(0, 0, 1.0)], dtype=MODULES), 1)
    runs, spans = runs_of(chunks, np.array([5, 6, 9, 7], dtype=np.int32), 1024)
    assert runs.tolist() == [[80, 16 << 16, 0, 64], [144, 8 << 16, 0, 64], [112, 8 | 8 << 16, 0, 64]]
    assert spans.tolist() == [[0, 1, 2, 2]]


def test_what_can_not_be_set_changes_nothing() -> None:
    layout = _core.AdapterLayout(1024, "bf16", [(2, 3, 64, 64, 16, 1.0)])
    chunks = chunks_of(layout, np.array([(2, 3, 1.0)], dtype=MODULES), IN_LAYER)
    table = SlotTable(2, LAYERS, IN_LAYER, 10, 1024, "cpu")
    pages = np.arange(4, dtype=np.int32)
    table.set(0, 7, chunks, pages)
    before = [tensor.clone() for tensor in table.table[:4]]
    far = np.full(4, (1 << 31) - 1, dtype=np.int32)
    for slot, tag, which, error in (
        (0, 8, pages, ValueError),
        (2, 8, pages, ValueError),
        (-1, 8, pages, ValueError),
        (1, 0, pages, ValueError),
        (1, 8, far, OverflowError),
    ):
        with pytest.raises(error):
            table.set(slot, tag, chunks, which)
    small = SlotTable(2, 1, 1, 10, 1024, "cpu")
    with pytest.raises(ValueError, match="place 11 of 1"):
        small.set(0, 7, chunks, pages)
    with pytest.raises(RunsFull, match="4 runs, 3 of 3"):
        SlotTable(1, LAYERS, IN_LAYER, 3, 1024, "cpu").set(0, 7, chunks, pages[::-1].copy())
    assert all(torch.equal(now, then) for now, then in zip(table.table[:4], before, strict=True))


def test_ranges_against_a_list() -> None:
    rng = np.random.default_rng(0)
    ranges, taken = Ranges(50), np.zeros(50, dtype=bool)
    held: list[tuple[int, int]] = []
    for _ in range(3000):
        if held and rng.random() < 0.5:
            begin, length = held.pop(int(rng.integers(len(held))))
            ranges.give(begin, length)
            taken[begin : begin + length] = False
        else:
            length = int(rng.integers(1, 12))
            fits = [at for at in range(51 - length) if not taken[at : at + length].any()]
            begin = ranges.take(length)
            assert begin == (fits[0] if fits else None)
            if begin is not None:
                held.append((begin, length))
                taken[begin : begin + length] = True
        assert ranges.free == 50 - taken.sum()
