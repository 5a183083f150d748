"""Files that aren't an adapter's, or not whole, or change: refused at load, with the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lorad.adapters.load import load_adapter
from lorad.errors import AdapterRejected
from lorad.models.config import ModelConfig
from refusing import FILE, Case, Tensors, refused
from tiny import flip, rewrite


def moved(name: str, target: str) -> Callable[[Path], Any]:
    return lambda path: (path / name).rename(path / target)


FILES: dict[str, Case] = {
    "5.12 no folder": (lambda path: path.rename(path.parent / "gone"), "adapter_missing", ("there is no folder",)),
    "no config": (moved("adapter_config.json", "config.json"), "adapter_missing", ("no adapter_config.json",)),
    "no tensors": (lambda path: (path / FILE).unlink(), "adapter_missing", (f"no {FILE}",)),
    "pickle": (moved(FILE, "adapter_model.bin"), "adapter_missing", ("adapter_model.bin is a pickle", "safetensors")),
    "MLX file": (
        moved(FILE, "adapters.safetensors"),
        "adapter_missing",
        ("adapter_config.json is PEFT's", "adapters."),
    ),
    "GGUF file": (moved(FILE, "adapter.gguf"), "adapter_file", ("adapter.gguf isn't a readable GGUF file",)),
    "config cut": (
        lambda path: rewrite(path / "adapter_config.json", lambda content: content[:50]),
        "adapter_config",
        ("isn't JSON",),
    ),
    "config a list": (
        lambda path: (path / "adapter_config.json").write_text("[]"),
        "adapter_config",
        ("isn't an object",),
    ),
    "config deep": (
        lambda path: (path / "adapter_config.json").write_text("[" * 100_000),
        "adapter_config",
        ("isn't JSON",),
    ),
    "config long": (
        lambda path: (path / "adapter_config.json").write_text(" " * (1 << 21)),
        "adapter_config",
        ("longer than 1048576",),
    ),
    "config a folder": (
        lambda path: ((path / "adapter_config.json").unlink(), (path / "adapter_config.json").mkdir()),
        "adapter_missing",
        ("no adapter_config.json",),
    ),
    "tensors empty": (lambda path: (path / FILE).write_bytes(b""), "adapter_file", ("cut: 0 bytes",)),
    "tensors cut": (
        lambda path: rewrite(path / FILE, lambda content: content[:-10]),
        "adapter_file",
        ("cut: its tensors end at byte",),
    ),
    "header cut": (lambda path: rewrite(path / FILE, lambda c: c[:100]), "adapter_file", ("cut: its header",)),
    "header huge": (
        lambda path: rewrite(path / FILE, lambda content: b"\xff" * 8 + content[8:]),
        "adapter_file",
        ("at most 100000000",),
    ),
    "more bytes": (lambda path: rewrite(path / FILE, lambda c: c + b"12"), "adapter_file", ("left over",)),
    "key twice": (
        lambda path: rewrite(path / FILE, lambda content: content.replace(b"layers.1.", b"layers.0.")),
        "adapter_file",
        ("is there twice",),
    ),
    "5.10 added token": (
        lambda path: (path / "added_tokens.json").write_text(json.dumps({"<new>": 320})),
        "adapter_added_tokens",
        ("320",),
    ),
    "5.10 added token in tokenizer.json": (
        lambda path: (path / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 400, "content": "x"}]})),
        "adapter_added_tokens",
        ("400", "320"),
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, adapter: Path, config: ModelConfig) -> None:
    change, code, texts = FILES[name]
    change(adapter)
    refused(adapter, config, code, *texts)


@pytest.mark.parametrize("seed", range(200))
def test_damaged_files_are_refused_or_are_other_content(seed: int, adapter: Path, config: ModelConfig) -> None:
    """Any bytes changed anywhere: a refusal or an adapter whose generation says so, never another exception."""
    rng = np.random.default_rng(seed)
    before = load_adapter("mine", adapter, config, "digest").generation
    file = adapter / (FILE if seed % 4 else "adapter_config.json")
    end = 2500 if seed % 2 else file.stat().st_size
    content = file.read_bytes()
    rewrite(file, lambda old: flip(old, rng, int(rng.integers(1, 4)), min(end, len(old))))
    try:
        after = load_adapter("mine", adapter, config, "digest")
    except AdapterRejected as refusal:
        assert refusal.code.startswith("adapter_")
        return
    weights = load_file(file) if file.name == FILE else {}
    if any(not torch.equal(value, load_before) for value, load_before in _both(content, weights)):
        assert after.generation != before


def _both(content: bytes, after: Tensors) -> list[tuple[torch.Tensor, torch.Tensor]]:
    from safetensors.torch import load

    if not after:
        return []
    before = load(content)
    return [(value, before[key]) for key, value in after.items() if key in before]


def test_file_that_changes_between_check_and_read(
    adapter: Path, config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lorad.adapters import load as module
    from lorad.adapters.read import AdapterFiles, read_adapter

    def read_then_change(path: Path, base: ModelConfig) -> AdapterFiles:
        files = read_adapter(path, base)
        save_file({key: value[:1] for key, value in load_file(path / FILE).items()}, path / FILE)
        return files

    monkeypatch.setattr(module, "read_adapter", read_then_change)
    refused(adapter, config, "adapter_file", "changed while it was read")
