"""The adapter layout: every weight has one place, whatever the page size, and costs its true rank."""

from __future__ import annotations

import numpy as np
import pytest

from lorad import _core

NUMPY = {"f32": np.dtype(np.uint32), "f16": np.dtype(np.uint16), "bf16": np.dtype(np.uint16)}


def raw(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


@pytest.mark.parametrize("seed", range(30))
def test_every_weight_is_where_its_chunk_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    element = ["f32", "f16", "bf16"][seed % 3]
    page_bytes = 64 * int(rng.integers(1, 60))
    shapes = [
        (layer, module, int(rng.integers(1, 70)), int(rng.integers(1, 70)), int(rng.integers(1, 21)), 0.5)
        for layer in range(3)
        for module in range(4)
        if rng.random() < 0.7
    ] or [(0, 0, 5, 6, 3, 1.0)]
    layout = _core.AdapterLayout(page_bytes, element, [shapes[i] for i in rng.permutation(len(shapes))])
    dtype = NUMPY[element]
    image = np.zeros((layout.pages, page_bytes), dtype=np.uint8)
    taken = np.zeros_like(image)
    for layer, module, inputs, outputs, rank, _ in shapes:
        a = rng.integers(1, 2**16, (rank, inputs)).astype(dtype)
        b = rng.integers(1, 2**16, (outputs, rank)).astype(dtype)
        layout.pack(image, layer, module, raw(a), raw(b))
        found = {"a": np.zeros_like(a), "b": np.zeros_like(b.T)}
        for page, offset, part, rank_begin, rows, begin, length in layout.chunks(layer, module):
            size = rows * length * dtype.itemsize
            assert offset % 64 == 0 and offset + size <= page_bytes and rows <= _core.TILE_ROWS
            assert not taken[page, offset : offset + size].any()
            taken[page, offset : offset + size] = 1
            block = image[page, offset : offset + size].view(dtype).reshape(rows, length)
            found[part][rank_begin : rank_begin + rows, begin : begin + length] = block
            assert page < layout.layer_pages[layer]
        assert (found["a"] == a).all() and (found["b"] == b.T).all()
    assert layout.weight_bytes == taken.sum()
    assert layout.layer_pages[-1] == layout.pages


@pytest.mark.parametrize(
    ("page_bytes", "element", "modules", "text"),
    [
        (0, "f32", [(0, 0, 1, 1, 1, 1.0)], "page_bytes"),
        (65, "f32", [(0, 0, 1, 1, 1, 1.0)], "page_bytes"),
        (64, "f64", [(0, 0, 1, 1, 1, 1.0)], "element"),
        (64, "f32", [], "at least one module"),
        (64, "f32", [(0, 0, 0, 1, 1, 1.0)], "positive"),
        (64, "f32", [(0, 0, 1, 1, 1, float("nan"))], "finite"),
        (64, "f32", [(0, 0, 1, 1, 1, 1.0)] * 2, "twice"),
        (64, "f32", [(0, 0, 2**32 - 1, 2**32 - 1, 2**32 - 1, 1.0)], "chunks"),
        (64, "f32", [(2**32 - 1, 0, 1, 1, 1, 1.0)], "chunks"),
    ],
)
def test_hostile_shapes_are_refused(page_bytes: int, element: str, modules: list, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        _core.AdapterLayout(page_bytes, element, modules)


def test_bytes_of_the_wrong_length_are_refused() -> None:
    layout = _core.AdapterLayout(64, "f32", [(0, 0, 4, 4, 2, 1.0)])
    image = np.zeros((layout.pages, 64), dtype=np.uint8)
    good = np.zeros(32, dtype=np.uint8)
    layout.pack(image, 0, 0, good, good)
    for bad in [(image, good[:-1], good), (image, good, good[:-4]), (image[:0], good, good)]:
        with pytest.raises(ValueError, match="bytes are needed"):
            layout.pack(bad[0], 0, 0, bad[1].copy(), bad[2].copy())
    with pytest.raises(ValueError, match="no module 3"):
        layout.pack(image, 0, 3, good, good)
