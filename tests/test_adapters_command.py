"""`lorad adapters`: what it says of adapters that load, that don't, with a base and without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lorad import cli
from lorad.adapters.command import default_page_bytes
from lorad.adapters.load import load_adapter
from lorad.adapters.report import effects, make_report
from lorad.models.config import MODULES
from lorad.models.open import open_model
from lorad.models.weights import Weights
from make_adapter import edit_config, edit_tensors, make_adapter
from other_formats import to_gguf, to_mlx
from tiny import make_tiny


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    return open_model(make_tiny(tmp_path_factory.mktemp("base") / "model"))


@pytest.fixture
def adapter(base: Weights, tmp_path: Path) -> Path:
    return make_adapter(tmp_path / "good", base.config, rank=4, modules=["q_proj", "up_proj"], alpha=6)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = cli.main(["adapters", *map(str, arguments)])
    return code, capsys.readouterr().out


def data(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any]:
    code, text = run(capsys, *arguments, "--json")
    return code, json.loads(text)


def test_norms_are_those_of_the_products(base: Weights, tmp_path: Path) -> None:
    for number, options in enumerate(
        ({"rank": 70}, {"rank": 3, "dtype": torch.bfloat16}, {"strength": 0.0, "rank": 2})
    ):
        path = make_adapter(tmp_path / str(number), base.config, rank_pattern={"k_proj": 5}, **options)  # type: ignore[arg-type]
        checked = load_adapter("a", path, base.config, "d", allow_no_effect=True)
        for effect in effects(checked.modules):
            wanted = [
                float(torch.linalg.norm(lora.scale * (lora.b.double() @ lora.a.double())))
                for lora in checked.modules
                if MODULES[lora.module] == effect.module
            ]
            assert effect.layers == len(wanted) == base.config.layers
            found = (effect.norm_min, effect.norm_mean, effect.norm_max)
            assert found == pytest.approx((min(wanted), sum(wanted) / len(wanted), max(wanted)), rel=1e-9, abs=1e-12)


def test_inspect_with_a_base(base: Weights, adapter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = data(capsys, "inspect", adapter, "--model", base.path)
    checked = load_adapter("a", adapter, base.config, base.digest)
    assert code == 0
    assert found["refusal"] is None and found["warnings"] == []
    assert found["format"] == "PEFT" and found["types"] == ["F32"] and found["element"] == "f32"
    assert found["generation"] == checked.generation
    assert (found["bytes"], found["modules"], found["rank"]) == (checked.bytes, 6, 4)
    assert found["pages"] * found["page_bytes"] >= checked.bytes and found["pages"] > 0
    assert [(e["module"], e["layers"], e["ranks"], e["scales"]) for e in found["effects"]] == [
        ("q_proj", 3, [4], [1.5]),
        ("up_proj", 3, [4], [1.5]),
    ]
    assert all(0 < e["norm_min"] <= e["norm_mean"] <= e["norm_max"] for e in found["effects"])
    code, text = run(capsys, "inspect", adapter, "--model", base.path)
    assert code == 0
    for word in (checked.generation, "q_proj", "up_proj", "1.5", "PEFT", "F32"):
        assert word in text


def test_pages_are_the_engines(base: Weights, adapter: Path) -> None:
    from lorad import Engine

    info = Engine(str(base.path), kv_cache_memory_bytes=1 << 20, max_num_seqs=2).load_adapter("a", str(adapter))
    report = make_report(adapter, base, page_bytes=default_page_bytes(base.config))
    assert (report.pages, report.generation, report.bytes) == (info.pages, info.generation, info.bytes)


def test_every_format_is_the_same_without_a_base(
    base: Weights, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [
        adapter,
        to_gguf(adapter, tmp_path / "a.gguf", base.config),
        to_mlx(adapter, tmp_path / "mlx", base.config),
    ]
    code, found = data(capsys, "check", *paths)
    assert code == 0
    reports = found["adapters"]
    assert [report["format"] for report in reports] == ["PEFT", "GGUF", "MLX"]
    for report in reports:
        assert report["generation"] is None and report["pages"] is None
        for one, other in zip(report["effects"], reports[0]["effects"], strict=True):
            norms = [name for name in other if name.startswith("norm_")]
            assert [one[name] for name in norms] == pytest.approx([other[name] for name in norms], rel=1e-6)
            assert one | dict.fromkeys(norms) == other | dict.fromkeys(norms)
    code, text = run(capsys, "check", *paths)
    assert code == 0 and text.count("can be served") == 3


def test_check_ends_with_one_if_any_is_refused(
    base: Weights, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = edit_config(make_adapter(tmp_path / "bad[1]", base.config, rank=2), use_qalora=True)
    warned = edit_config(
        make_adapter(tmp_path / "warned", base.config, modules=["q_proj"]), target_modules="all-linear"
    )
    missing = tmp_path / "missing"
    code, text = run(capsys, "check", adapter, bad, warned, missing, "--model", base.path)
    assert code == 1
    for words in (
        "bad[1]: refused: use_qalora = True: QALoRA isn't supported",
        "[adapter_feature]",
        "warned: warning: ",
    ):
        assert words in text
    assert "refused: adapter_missing" in text
    code, found = data(capsys, "check", adapter, bad, warned, missing, "--model", base.path)
    assert code == 1
    assert [(report["refusal"] or {}).get("code") for report in found["adapters"]] == [
        None,
        "adapter_feature",
        None,
        "adapter_missing",
    ]
    assert found["adapters"][1]["format"] == "PEFT"
    assert run(capsys, "inspect", bad)[0] == 1


def test_the_rank_limit(base: Weights, adapter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = data(capsys, "inspect", adapter, "--max-lora-rank", 3)
    assert code == 1 and found["refusal"]["code"] == "adapter_rank_limit"


@pytest.mark.parametrize("module", MODULES)
def test_one_module_alone_implies_a_base(module: str, base: Weights, tmp_path: Path) -> None:
    path = make_adapter(tmp_path / "a", base.config, modules=[module])
    report = make_report(path)
    assert report.refusal is None and report.modules == 3
    assert [effect.module for effect in report.effects] == [module]


def test_tensors_that_fit_no_base(base: Weights, tmp_path: Path) -> None:
    path = make_adapter(tmp_path / "a", base.config, rank=4, modules=["q_proj", "k_proj"])
    key = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"
    edit_tensors(path, lambda old: old | {key: torch.ones(48, 4)})
    report = make_report(path)
    assert report.refusal is not None and report.refusal.code == "adapter_shape" and key in report.refusal.message
    edit_tensors(path, lambda old: {k: torch.ones(33, 4) if "q_proj.lora_B" in k else v for k, v in old.items()})
    report = make_report(path)
    assert report.refusal is not None and "q has 33 outputs, k and v have 32" in report.refusal.message
    edit_tensors(path, lambda old: {k.replace("layers.2", "layers.99999"): v for k, v in old.items()})
    report = make_report(path)
    assert report.refusal is not None and "99999" in report.refusal.message


def test_a_base_that_is_not_there(adapter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["adapters", "check", str(adapter), "--model", "/no/such/model"]) == 1
    assert "model_missing" in capsys.readouterr().err


def test_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["adapters"], ["adapters", "check"], ["adapters", "check", "x", "--jsn"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert ended.value.code == 2


@pytest.mark.parametrize("rank", ["-3", "0", "many", "5000", "²"])
def test_rank_limits_that_are_none(rank: str, adapter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(capsys, "check", adapter, "--max-lora-rank", rank)
    assert "1 to 4096" in capsys.readouterr().err


def test_a_name_sends_nothing_to_the_terminal(
    base: Weights, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_adapter(tmp_path / "red\x1b[31m", base.config)
    assert "\x1b" not in run(capsys, "check", path)[1] + run(capsys, "inspect", path)[1]
