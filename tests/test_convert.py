"""`lorad adapters convert`: the same adapter in another format, for lorad, PEFT and llama.cpp."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file

from llama_cpp import convert_lora, greedy, needs_llama_cpp, serving
from lorad.adapters import convert as convert_module
from lorad.adapters.checked import CheckedAdapter
from lorad.adapters.load import load_adapter
from lorad.adapters.pieces import Piece
from lorad.cli import main
from lorad.models.open import open_model
from lorad.models.values import values
from make_adapter import edit_config, edit_tensors, make_adapter
from oracle import Oracle, load_reference
from other_formats import to_gguf, to_mlx, to_shards
from tiny import EOS, TEXT_BYTES, make_tiny, make_tiny_gguf
from trained_adapter import train

Modules = tuple[Piece, ...]
FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gemma3"]
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
IDS = [5, 70, 101, 9, 33, 120, 7]
TOLERANCE = {"f32": 1e-6, "f16": 2e-3, "bf16": 1.2e-2}
"""How far a rounded number may be off, as a part of its tensor's greatest."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("base") / "tiny")


def load(base: Path, path: Path) -> CheckedAdapter:
    weights = open_model(base)
    return load_adapter("a", path, weights.config, weights.digest, base=lambda name: values(weights, name))


def converted(base: Path, source: Path, output: Path, *options: str) -> Path:
    assert main(["adapters", "convert", str(source), str(output), "--model", str(base), *options]) == 0
    return output


def refused(base: Path, source: Path, output: Path, *options: str) -> None:
    assert main(["adapters", "convert", str(source), str(output), "--model", str(base), *options]) == 1
    assert not output.exists() and not list(output.parent.glob(".*.unverified"))


def added(adapter: CheckedAdapter) -> dict[tuple[int, int], torch.Tensor]:
    """scale · B A of each module, f64."""
    return {(lora.layer, lora.module): lora.scale * (lora.b.double() @ lora.a.double()) for lora in adapter.modules}


@pytest.mark.parametrize("family", FAMILIES)
def test_to_gguf_and_back_is_the_same_adapter(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = make_tiny(tmp_path / "base", family)
    source = make_adapter(
        tmp_path / "a", open_model(base).config, rank=6, alpha=12.5, rank_pattern={"k_proj": 3}, dtype=torch.bfloat16
    )
    file = converted(base, source, tmp_path / "a.gguf", "--to", "gguf")
    text = capsys.readouterr().out
    assert "as llama.cpp GGUF in bf16" in text and "every number is the same" in text and "as before" in text
    back = converted(base, file, tmp_path / "back")
    assert "(GGUF, BF16) as PEFT safetensors in bf16" in capsys.readouterr().out
    before = load_file(source / "adapter_model.safetensors")
    after = load_file(back / "adapter_model.safetensors")
    assert before.keys() == after.keys()
    assert all(after[key].dtype == torch.bfloat16 and torch.equal(after[key], before[key]) for key in before)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_file_is_laid_out_as_the_converters(family: str, tmp_path: Path) -> None:
    """As `other_formats` has it, through gguf's own reader."""
    base = make_tiny(tmp_path / "base", family, tie_word_embeddings=False)
    config = open_model(base).config
    source = make_adapter(tmp_path / "a", config, rank=4, modules=[*PROJECTIONS, "lm_head"])
    edit_tensors(source, lambda old: {key: value for key, value in old.items() if "base_layer" not in key})
    assert contents(converted(base, source, tmp_path / "a.gguf", "--to", "gguf")) == contents(
        to_gguf(source, tmp_path / "other.gguf", config)
    )


@needs_llama_cpp
@pytest.mark.parametrize("family", FAMILIES)
def test_the_file_is_the_one_that_llama_cpps_converter_writes(family: str, tmp_path: Path) -> None:
    base = make_tiny(tmp_path / "base", family)
    source = make_adapter(tmp_path / "a", open_model(base).config, rank=4, alpha=12.5)
    theirs = convert_lora(base, source, tmp_path / "theirs.gguf")
    assert contents(converted(base, source, tmp_path / "a.gguf", "--to", "gguf")) == contents(theirs)


@needs_llama_cpp
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_llama_cpp_answers_as_peft_does(family: str, tmp_path: Path) -> None:
    """With scales that one alpha can't give, which llama.cpp's own converter would drop."""
    base = make_tiny(tmp_path / "base", family, tie_word_embeddings=False)
    model = make_tiny_gguf(base, tmp_path / "base.gguf", "F32")
    source = train(
        base,
        tmp_path / "a",
        target_modules=[*PROJECTIONS, "lm_head"],
        use_rslora=True,
        r=4,
        rank_pattern={"q_proj": 6},
        alpha_pattern={"v_proj": 3},
    )
    with serving(model, converted(model, source, tmp_path / "a.gguf", "--to", "gguf")) as address:
        found = greedy(address, IDS, 16)
    assert len(found) == 16
    for adapter in (source, None):
        logprobs = Oracle(load_reference(base)).logprobs([*IDS, *found[:-1]], adapter)[len(IDS) - 1 :]
        logprobs[:, [TEXT_BYTES, EOS]] = -torch.inf
        gaps = logprobs.max(dim=-1).values - logprobs[torch.arange(len(found)), found]
        assert bool((gaps < 1e-3).all()) == (adapter is not None), gaps


def contents(file: Path) -> dict[str, Any]:
    """All keys but names, and tensors."""
    reader = gguf.GGUFReader(file)
    keys = {name: field.contents() for name, field in reader.fields.items()}
    names = ("general.name", "general.basename", "general.version", "general.size_label", "GGUF.kv_count")
    tensors = {one.name: (one.tensor_type.name, one.shape.tolist(), one.data.tobytes()) for one in reader.tensors}
    return {name: value for name, value in keys.items() if name not in names} | tensors


PARTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "plain": ("llama", {}, {"use_rslora": True, "rank_pattern": {"q_proj": 3, "layers.1.mlp.up_proj": 2}}),
    "some layers": (
        "llama",
        {},
        {
            "target_modules": ["k_proj", "down_proj"],
            "layers_to_transform": [0, 2],
            "alpha_pattern": {"layers.2.self_attn.k_proj": 5},
        },
    ),
    "dora": ("llama", {}, {"use_dora": True, "target_modules": ["q_proj", "embed_tokens"]}),
    "bias of B": ("qwen2", {}, {"lora_bias": True}),
    "all biases": ("qwen2", {}, {"bias": "all", "target_modules": ["q_proj"]}),
    "some biases": ("qwen2", {}, {"bias": "lora_only", "target_modules": ["q_proj", "up_proj"]}),
    "vocabulary": ("llama", {"tie_word_embeddings": False}, {"target_modules": ["embed_tokens", "lm_head"]}),
    "in full": ("llama", {"tie_word_embeddings": False}, {"modules_to_save": ["embed_tokens", "lm_head"]}),
    "tokens": ("llama", {}, {"trainable_token_indices": [70, 5]}),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_folder_keeps_every_part_for_peft_and_for_lorad(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family, changes, lora = PARTS[name]
    base = make_tiny(tmp_path / "base", family, **changes)
    source = train(base, tmp_path / "source", **lora)
    folder = converted(base, source, tmp_path / "made")
    text = capsys.readouterr().out
    assert "in f32" in text and "every number is the same" in text and "as before" in text
    assert sorted(file.name for file in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    wanted, found = (Oracle(load_reference(base)).logprobs(IDS, path) for path in (source, folder))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_from_every_format(base: Path, tmp_path: Path) -> None:
    config = open_model(base).config
    source = make_adapter(tmp_path / "a", config, rank=4, alpha=9)
    wanted = load(base, source).generation
    forms = [
        to_gguf(source, tmp_path / "a.gguf", config),
        to_mlx(source, tmp_path / "mlx", config),
        to_shards(make_adapter(tmp_path / "parts", config, rank=4, alpha=9), 3),
        edit_tensors(
            make_adapter(tmp_path / "spelt", config, rank=4, alpha=9),
            lambda old: {key.replace("base_model.model.", "").replace("_A", "_a"): old[key] for key in old},
        ),
    ]
    for number, form in enumerate(forms):
        folder = converted(base, form, tmp_path / f"made{number}")
        assert load(base, folder).generation == wanted
        assert (
            load_file(folder / "adapter_model.safetensors").keys()
            == load_file(source / "adapter_model.safetensors").keys()
        )


def test_floats_of_8_bits_are_widened(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make_adapter(tmp_path / "a", open_model(base).config, rank=4)
    edit_tensors(source, lambda old: {key: value.to(torch.float8_e4m3fn) for key, value in old.items()})
    folder = converted(base, source, tmp_path / "made")
    assert "(PEFT, F8_E4M3) as PEFT safetensors in bf16" in capsys.readouterr().out
    assert load(base, folder).generation == load(base, source).generation
    stored = load_file(source / "adapter_model.safetensors")
    for key, value in load_file(folder / "adapter_model.safetensors").items():
        assert torch.equal(value.float(), stored[key].float())


@pytest.mark.parametrize("to", ["peft", "gguf"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_number_types(dtype: str, to: str, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make_adapter(tmp_path / "a", open_model(base).config, rank=4)
    made = converted(base, source, tmp_path / ("a.gguf" if to == "gguf" else "made"), "--to", to, "--dtype", dtype)
    text = capsys.readouterr().out
    before, after = added(load(base, source)), added(load(base, made))
    off = max(float((after[place] - before[place]).norm() / before[place].norm()) for place in before)
    if dtype == "f32":
        assert off == 0 and "every number is the same" in text
    else:
        assert 0 < off < TOLERANCE[dtype]
        told = re.search(r"off by (\S+) of it at most", text)
        assert told and float(told[1]) == pytest.approx(off, rel=0.05)
    if to == "gguf":
        kinds = {tensor.tensor_type.name for tensor in gguf.GGUFReader(made).tensors}
        assert kinds == {dtype.upper()}


def test_scales_that_one_alpha_cant_give_go_into_b(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make_adapter(tmp_path / "a", open_model(base).config, rank=4)
    edit_config(source, alpha_pattern={"k_proj": 5, "layers.1.mlp.up_proj": 0})
    file = converted(base, source, tmp_path / "a.gguf", "--to", "gguf")
    assert "in f32" in (text := capsys.readouterr().out) and "4 modules' scales are in B" in text
    reader = gguf.GGUFReader(file)
    assert reader.fields["adapter.lora.alpha"].contents() == 16
    before, after = added(load(base, source)), added(load(base, file))
    for place in before:
        torch.testing.assert_close(after[place], before[place], rtol=1e-6, atol=1e-7)
    assert torch.count_nonzero(before[1, 5]) == 0


@pytest.mark.parametrize(
    ("family", "changes", "lora", "words"),
    [
        ("llama", {}, {"use_dora": True}, "magnitudes (use_dora)"),
        ("llama", {}, {"lora_bias": True, "target_modules": ["q_proj"]}, "(lora_bias)"),
        ("qwen2", {}, {"bias": "lora_only", "target_modules": ["q_proj"]}, "(bias)"),
        ("llama", {}, {"modules_to_save": ["lm_head"], "target_modules": ["q_proj"]}, "(modules_to_save)"),
        ("llama", {}, {"trainable_token_indices": [5], "target_modules": ["q_proj"]}, "(trainable_token_indices)"),
        ("llama", {}, {"target_modules": ["embed_tokens"]}, "LoRA on the embedding"),
        ("llama", {}, {"target_modules": ["lm_head"]}, "are tied"),
    ],
    ids=lambda value: value if isinstance(value, str) and "(" in value else "",
)
def test_what_llama_cpps_format_cant_hold(
    family: str,
    changes: dict[str, Any],
    lora: dict[str, Any],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    base = make_tiny(tmp_path / "base", family, **changes)
    source = train(base, tmp_path / "source", **lora)
    refused(base, source, tmp_path / "made.gguf", "--to", "gguf")
    error = capsys.readouterr().err
    assert words in error and "[convert_feature]" in error and "--to peft can" in error


def test_refusals(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make_adapter(tmp_path / "a", open_model(base).config, rank=4)
    for output, options, code in (
        (tmp_path / "made.gguf", ["--to", "peft"], "output_name"),
        (tmp_path / "made", ["--to", "gguf"], "output_name"),
        (tmp_path / "made", ["--max-lora-rank", "3"], "adapter_rank_limit"),
    ):
        refused(base, source, output, *options)
        assert f"[{code}]" in capsys.readouterr().err
    edit_tensors(source, lambda old: {key: value * 1e6 for key, value in old.items()})
    refused(base, source, tmp_path / "made", "--dtype", "f16")
    error = capsys.readouterr().err
    assert "[output_range]" in error and "lora_A.weight has values that f16 can't hold" in error


def one_number(modules: Modules) -> Modules:
    parts = {part: tensor.clone() for part, tensor in modules[3].parts.items()}
    parts["B"][1, 2] *= 1.0001
    return (*modules[:3], modules[3]._replace(parts=parts), *modules[4:])


def a_scale(modules: Modules) -> Modules:
    return (modules[0]._replace(scale=modules[0].scale * 1.0001, parts={**modules[0].parts}), *modules[1:])


def rows_in_another_order(modules: Modules) -> Modules:
    parts = {part: tensor.roll(2, 0) if part == "B" else tensor for part, tensor in modules[0].parts.items()}
    return (modules[0]._replace(parts=parts), *modules[1:])


def a_module_less(modules: Modules) -> Modules:
    return modules[1:]


@pytest.mark.parametrize(
    ("to", "change"),
    [("peft", change) for change in (one_number, a_scale, rows_in_another_order, a_module_less)]
    # Scales in that format are the alpha's.
    + [("gguf", change) for change in (one_number, rows_in_another_order, a_module_less)],
)
def test_a_wrong_conversion_is_noticed(
    to: str,
    change: Callable[[Modules], Modules],
    base: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = make_adapter(tmp_path / "a", open_model(base).config, rank=4)
    output = tmp_path / ("made.gguf" if to == "gguf" else "made")
    write_peft, write_gguf = convert_module.write_peft, convert_module.write_gguf
    monkeypatch.setattr(
        convert_module,
        "write_peft",
        lambda folder, pieces, *rest: write_peft(folder, replace(pieces, modules=change(pieces.modules)), *rest),
    )
    monkeypatch.setattr(
        convert_module,
        "write_gguf",
        lambda file, adapter, *rest: write_gguf(file, adapter._replace(modules=change(adapter.modules)), *rest),
    )
    refused(base, source, output, "--to", to)
    assert "[convert_verify]" in capsys.readouterr().err
