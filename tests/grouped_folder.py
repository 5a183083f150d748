"""Checkpoints of GPTQ and AWQ written by the formats' definitions, and the same weights in floats beside them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from four_bits import AWQ_ORDER, GPTQ_ORDER, Grouped, words

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def rounded(weight: Tensor, group: int, *, symmetric: bool) -> Grouped:
    """Nearest codes for a weight f32 [out, in]; scales of f16."""
    inputs = weight.shape[1]
    parts = weight.T.reshape(-1, group or inputs, len(weight))
    if symmetric:
        scales = (parts.abs().amax(1) / 7).half()
        zeros = torch.full(scales.shape, 8)
    else:
        low, high = parts.amin(1).clamp(max=0), parts.amax(1).clamp(min=0)
        scales = ((high - low) / 15).half()
        zeros = (-low / scales.float()).round().clamp(0, 15).long()
    codes = (parts / scales.float()[:, None]).round() + zeros[:, None]
    return Grouped(codes.clamp(0, 15).long().reshape(inputs, -1), zeros, scales, group)


def stored(grouped: Grouped, method: str, zeros_less: int, g_idx: Tensor | None) -> dict[str, Tensor]:
    """A weight's tensors as its method's files have them."""
    if method == "awq":
        qweight, order = words(grouped.codes, AWQ_ORDER), AWQ_ORDER
    else:
        qweight, order = words(grouped.codes.T, GPTQ_ORDER).T.contiguous(), GPTQ_ORDER
    found = {"qweight": qweight, "qzeros": words((grouped.zeros - zeros_less) % 16, order), "scales": grouped.scales}
    return found if g_idx is None else {**found, "g_idx": g_idx.int()}


def grouped_folder(
    base: Path, path: Path, quantization: dict[str, Any], *, symmetric: bool = False, act_order: bool = False
) -> tuple[Path, Path]:
    """A base's folder with its linear weights in four bits, and one with what these say as f32."""
    method, group = quantization["quant_method"], max(quantization["group_size"], 0)
    less = 1 if method == "gptq" and quantization.get("checkpoint_format") != "gptq_v2" else 0
    tensors = load_file(base / "model.safetensors")
    packed, floats = dict(tensors), dict(tensors)
    random = torch.Generator().manual_seed(5)
    for key in [key for key in tensors if key.split(".")[-2] in LINEAR and key.endswith(".weight")]:
        weight, prefix = packed.pop(key).float(), key.removesuffix(".weight")
        inputs = weight.shape[1]
        g_idx = torch.arange(inputs) // (group or inputs)
        order = torch.randperm(inputs, generator=random) if act_order else torch.arange(inputs)
        grouped = rounded(weight[:, order], group, symmetric=symmetric)
        value = grouped.floats
        floats[key] = value[:, order.argsort()].contiguous()  # columns back where they were
        if act_order:
            back = order.argsort()
            grouped, g_idx = grouped._replace(codes=grouped.codes[back]), g_idx[back]
        written = stored(grouped, method, less, g_idx if method == "gptq" else None)
        packed |= {f"{prefix}.{part}": tensor.contiguous() for part, tensor in written.items()}
    folders = []
    for name, kept, extra in (("packed", packed, {"quantization_config": quantization}), ("floats", floats, {})):
        folder = path / name
        shutil.copytree(base, folder)
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **extra}))
        folders.append(folder)
    return folders[0], folders[1]
