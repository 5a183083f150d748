"""Pages that say something else than the file are found at the load."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lorad.adapters import image as image_module
from lorad.adapters.checked import CheckedAdapter
from lorad.adapters.image import AdapterImage, build_image
from lorad.adapters.load import load_adapter
from lorad.adapters.parity import check_parity
from lorad.errors import AdapterRejected
from lorad.models.config import ModelConfig
from make_adapter import edit_tensors, make_adapter

PAGE_BYTES = 4096


def made(path: Path, config: ModelConfig, **options: object) -> CheckedAdapter:
    return load_adapter("mine", make_adapter(path, config, **options), config, "digest")  # type: ignore[arg-type]


@pytest.mark.parametrize("page_bytes", [512, 4096, 65536])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_sound_images_pass(dtype: torch.dtype, page_bytes: int, config: ModelConfig, tmp_path: Path) -> None:
    checked = made(tmp_path, config, rank=19, dtype=dtype, rank_pattern={"up_proj": 3})
    check_parity(checked, build_image(checked, page_bytes))


def test_the_greatest_and_the_least_numbers_pass(config: ModelConfig, tmp_path: Path) -> None:
    for size in (1e13, 1e-44):
        path = make_adapter(tmp_path / str(size), config, rank=4)
        edit_tensors(path, lambda old, size=size: {key: value.sign() * size for key, value in old.items()})  # type: ignore[misc]
        checked = load_adapter("mine", path, config, "digest")
        check_parity(checked, build_image(checked, PAGE_BYTES))


def test_terms_that_cancel_pass(config: ModelConfig, tmp_path: Path) -> None:
    """What is left of them is the rounding of their sums, which come in another order."""
    path = make_adapter(tmp_path, config, rank=20)

    def cancel(tensors: dict[str, torch.Tensor]) -> None:
        for key, tensor in tensors.items():
            half = tensor.shape[0 if "lora_A" in key else 1] // 2
            if "lora_A" in key:
                tensor[half:] = tensor[:half]
            else:
                tensor[:, half:] = -tensor[:, :half]

    checked = load_adapter("mine", edit_tensors(path, cancel), config, "digest")
    for page_bytes in (512, PAGE_BYTES):
        check_parity(checked, build_image(checked, page_bytes))


def rewritten(image: AdapterImage, change: Callable[[NDArray[np.uint8]], None]) -> AdapterImage:
    data = np.empty((image.layout.pages, PAGE_BYTES), np.uint8)
    image.read(0, data)
    change(data)
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
    file.write(data.tobytes())
    return AdapterImage(image.layout, PAGE_BYTES, file, image.modules)


def shifted(data: NDArray[np.uint8]) -> None:
    data[:] = np.roll(data, 1, axis=0)


def rolled(data: NDArray[np.uint8]) -> None:
    data[:] = np.roll(data, 4, axis=1)


def emptied(data: NDArray[np.uint8]) -> None:
    data[:] = 0


def not_a_number(data: NDArray[np.uint8]) -> None:
    data[:] = 255


@pytest.mark.parametrize("change", [shifted, rolled, emptied, not_a_number])
def test_pages_with_something_else_are_found(
    change: Callable[[NDArray[np.uint8]], None], config: ModelConfig, tmp_path: Path
) -> None:
    checked = made(tmp_path, config, rank=9)
    image = rewritten(build_image(checked, PAGE_BYTES), change)
    with pytest.raises(AdapterRejected, match="its pages give another result than its file in layer") as caught:
        check_parity(checked, image)
    assert caught.value.code == "adapter_parity"


def heads_interleaved(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(2, -1, tensor.shape[-1]).transpose(0, 1).reshape(tensor.shape)


PACKINGS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows interleaved": heads_interleaved,
    "transposed": lambda tensor: tensor.T.contiguous().reshape(tensor.shape),
    "columns backwards": lambda tensor: tensor.flip(-1).contiguous(),
}


@pytest.mark.parametrize("half", ["a", "b"])
@pytest.mark.parametrize("name", PACKINGS)
def test_wrong_packings_are_found(
    name: str, half: str, config: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one half only: both halves backwards are the same product."""
    checked = made(tmp_path, config, rank=8, modules=["q_proj"])
    wrong = {lora.a.data_ptr() if half == "a" else lora.b.data_ptr() for lora in checked.modules}
    right = image_module._bytes
    monkeypatch.setattr(
        image_module, "_bytes", lambda tensor: right(PACKINGS[name](tensor) if tensor.data_ptr() in wrong else tensor)
    )
    with pytest.raises(AdapterRejected, match="give another result"):
        check_parity(checked, build_image(checked, PAGE_BYTES))


def test_another_adapters_image_is_found(config: ModelConfig, tmp_path: Path) -> None:
    first, second = (made(tmp_path / str(seed), config, seed=seed) for seed in (1, 2))
    with pytest.raises(AdapterRejected, match="give another result"):
        check_parity(first, build_image(second, PAGE_BYTES))


def test_the_engines_load_checks(config: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lorad import Engine
    from tiny import make_tiny

    engine = Engine(str(make_tiny(tmp_path / "base")), kv_cache_memory_bytes=1 << 20, max_num_seqs=2)
    path = make_adapter(tmp_path / "a", config)
    engine.load_adapter("a", str(path))
    right = image_module._bytes
    monkeypatch.setattr(image_module, "_bytes", lambda tensor: right(tensor.flip(0)))
    with pytest.raises(AdapterRejected, match="give another result"):
        engine.load_adapter("b", str(path))
