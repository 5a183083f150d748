"""Models with other values in their matrices, and an adapter merged into its base."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lorad import Engine
from lorad.adapters.checked import CheckedAdapter
from lorad.adapters.load import load_adapter
from lorad.adapters.merge import merge, unwritable
from lorad.errors import LoradError
from lorad.models.config import MODULES
from lorad.models.open import open_model
from lorad.models.weights import Weights
from make_adapter import make_adapter
from tiny import WIDE, make_tiny, make_tiny_gguf

STEPS = {"F32": 1e-6, "F16": 2e-3, "BF16": 1e-2, "Q8_0": 1e-2, "Q5_1": 0.05, "Q5_0": 0.1, "Q4_1": 0.1, "Q4_0": 0.2}
"""How far a rounded value may be off, as a part of its row's greatest."""


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LORAD_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("rewrite") / "tiny")


def adapter_of(path: Path, weights: Weights) -> CheckedAdapter:
    """On three modules of two layers, as strong as the weights themselves."""
    make_adapter(path, weights.config, rank=4, modules=["q_proj", "k_proj", "down_proj"], layers=[0, 2], strength=2.0)
    return load_adapter("a", path, weights.config, weights.digest)


def check_merged(old: Weights, new: Weights, adapter: CheckedAdapter) -> None:
    """W + s B A where the adapter is, the very bytes elsewhere."""
    changed = {f"layers.{lora.layer}.{MODULES[lora.module]}": lora for lora in adapter.modules}
    assert len(changed) == 6 and new.config.replace(name="") == old.config.replace(name="")
    for name in old.config.shapes():
        before, after = old.tensor(name), new.tensor(name)
        assert after.kind == before.kind
        if name not in changed:
            assert (before.raw == after.raw).all(), name
            continue
        lora = changed[name]
        wanted = before.dequantize() + lora.scale * (lora.b.float() @ lora.a.float())
        limit = STEPS[before.kind] * wanted.abs().amax(dim=1, keepdim=True)
        assert ((after.dequantize() - wanted).abs() <= limit).all(), name
        off, moved = ((after.dequantize() - values).abs().mean() for values in (wanted, before.dequantize()))
        assert off < moved / 3, f"{name}: rows in another order"


@pytest.mark.parametrize("kind", STEPS)
def test_an_adapter_merged_into_a_gguf_file(folder: Path, tmp_path: Path, kind: str) -> None:
    file = make_tiny_gguf(folder, tmp_path / "tiny.gguf", kind, modules={"k_proj": "F16"})
    before, link = file.read_bytes(), tmp_path / "link.gguf"
    link.symlink_to(file)
    old = open_model(link)
    adapter = adapter_of(tmp_path / "a", old)
    (tmp_path / "merged").mkdir()
    made = merge(old, adapter, tmp_path / "merged")
    assert made == tmp_path / "merged" / "link.gguf"
    check_merged(old, open_model(made), adapter)
    assert file.read_bytes() == before


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_adapter_merged_into_a_folder(tmp_path: Path, family: str, dtype: torch.dtype) -> None:
    # several weights files, of which one without a changed matrix is only linked
    old = open_model(make_tiny(tmp_path / "base", family, dtype=dtype, max_shard_size="25KB"))
    adapter = adapter_of(tmp_path / "a", old)
    (tmp_path / "merged").mkdir()
    made = merge(old, adapter, tmp_path / "merged")
    check_merged(old, open_model(made), adapter)
    links = {file.name: file.is_symlink() for file in made.glob("*.safetensors")}
    assert set(links.values()) == {True, False} and (made / "tokenizer.json").is_symlink()


def test_the_merged_model_answers_as_the_adapter_does(folder: Path, tmp_path: Path) -> None:
    base = Engine(str(folder), kv_cache_memory_bytes=16 << 20, deterministic=True)
    adapter = adapter_of(tmp_path / "a", base.weights)
    (tmp_path / "merged").mkdir()
    merged = Engine(str(merge(base.weights, adapter, tmp_path / "merged")), kv_cache_memory_bytes=16 << 20)
    base.load_adapter("a", str(tmp_path / "a"))
    asked = [(base, ""), (base, "a"), (merged, "")]
    requests = [engine.add([5, 6, 7], model, max_tokens=16, stop_token_ids=()) for engine, model in asked]
    for engine in (base, merged):
        while engine.step():
            pass
    plain, applied, together = (request.tokens for request in requests)
    assert together == applied != plain


def test_a_folder_that_is_not_there(folder: Path, tmp_path: Path) -> None:
    weights = open_model(folder)
    with pytest.raises(LoradError, match=r"can't be written to .*: No such file") as refused:
        merge(weights, adapter_of(tmp_path / "a", weights), tmp_path / "none")
    assert refused.value.code == "model_write"


def test_types_that_are_only_read(tmp_path: Path) -> None:
    wide = make_tiny(tmp_path / "wide", **WIDE)
    file = make_tiny_gguf(wide, tmp_path / "k.gguf", "Q4_K", modules={"v_proj": "Q6_K", "o_proj": "Q4_0"}, embed="Q8_0")
    assert unwritable(open_model(file)) == ["Q4_K", "Q6_K"]
    plain = make_tiny_gguf(wide, tmp_path / "q.gguf", "Q4_0", embed="Q6_K")
    assert unwritable(open_model(plain)) == [], "nothing is merged into the embedding"
