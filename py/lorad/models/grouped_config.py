"""`GroupedFormat`: how a Hugging Face folder's four-bit weights are stored, from its quantization_config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from lorad.errors import ModelRejected
from lorad.models.fields import Integers, flag, mapping, shown

UNIT = 32
"""Columns of a block: groups are made of whole ones."""
_WHERE = "config.json: quantization_config."


class GroupedFormat(NamedTuple):
    """w = scale · (code − zero), with a scale and a zero for each row and group of columns."""

    method: str
    """"gptq" (Frantar et al. 2022, arXiv:2210.17323) or "awq" (Lin et al. 2023, arXiv:2306.00978)."""
    group: int
    """Columns; 0: all."""
    zeros_less: int
    """What files have zeros less than they are: 1 in GPTQ's first version, else 0."""


def grouped_format(config: Mapping[str, Any], beside: Mapping[str, Any] | None = None) -> GroupedFormat | None:
    """None where weights aren't quantised. `beside`: of older GPTQ folders, quantize_config.json.

    Refuses what isn't four bits by GPTQ or by AWQ's GEMM version (`model_feature`, names field and value).
    """
    given = mapping(config.get("quantization_config"), "config.json: quantization_config")
    if not given and beside:
        given = {"quant_method": "gptq", **beside}
    if not given:
        return None
    method = given.get("quant_method")
    if method not in ("gptq", "awq"):
        raise _unserved("quant_method", method, "gptq and awq")
    older = {"bits": given.get("w_bit"), "group_size": given.get("q_group_size")}  # AutoAWQ's own names
    get = Integers({**older, **given}, _WHERE)
    if (bits := get("bits")) != 4:
        raise _unserved("bits", bits, "4")
    group = get("group_size")
    if group != -1 and (group < UNIT or group % UNIT):
        raise _unserved("group_size", group, f"-1 and multiples of {UNIT}")
    if method == "awq":
        version = str(given.get("version", "gemm")).lower()
        if version != "gemm":
            raise _unserved("version", given.get("version"), "gemm")
        return GroupedFormat("awq", max(group, 0), 0)
    form = str(given.get("checkpoint_format", "gptq")).lower()
    if given.get("is_marlin_format") is not None and flag(given["is_marlin_format"], f"{_WHERE}is_marlin_format"):
        form = "marlin"
    if form not in ("gptq", "gptq_v2"):
        raise _unserved("checkpoint_format", form, "gptq and gptq_v2")
    return GroupedFormat("gptq", max(group, 0), 1 if form == "gptq" else 0)


def _unserved(field: str, value: object, served: str) -> ModelRejected:
    return ModelRejected(f"{_WHERE}{field} = {shown(value)} isn't supported; supported: {served}", code="model_feature")
