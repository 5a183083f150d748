"""adapter_config.json: ranks and scales as PEFT derives them, and every other feature accepted or refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lorad.adapters.features import (
    DORA_WITH_BIAS,
    FIELDS,
    OTHER_METHOD,
    OTHER_WHOLE,
    STARTS,
    UNKNOWN_BIAS,
    UNKNOWN_FIELD,
    UNKNOWN_START,
    Feature,
)
from lorad.adapters.patterns import Patterns
from lorad.adapters.reject import reject
from lorad.models.config import EMBED, VOCABULARY

_INACTIVE: tuple[Any, ...] = (None, False, "", [], {})

_RANK_DEFAULT = _ALPHA_DEFAULT = 8
"""PEFT's, for a config that leaves them out."""

_ALPHA_MAX = float(np.finfo(np.float32).max)

IGNORED = {
    "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "megatron_core", "qalora_group_size", "loftq_config", "eva_config", "corda_config", "lora_ga_config",
    "ensure_weight_tying", "lora_dropout", "runtime_config", "unsloth_fixed", "fan_in_fan_out",
}  # fmt: skip
"""Fields without a say here: they matter in training only, or to modules that no base here has."""

READ = {
    "peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "init_lora_weights", "bias",
    "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern",
    "use_dora", "lora_bias", "modules_to_save", "trainable_token_indices",
}  # fmt: skip
"""Fields that are read, the third line of them by `targets`."""

FEATURES = FIELDS
"""Fields whose active value is refused. A field that isn't in any of these tables is refused too, if it's active."""

BIASES = ("none", "all", "lora_only")
"""Which biases of the base were trained."""

PLAIN_STARTS = ("gaussian", "eva", "orthogonal", "mica")
"""Values of init_lora_weights, beside true and false, that leave the base as it is."""


@dataclass(frozen=True)
class PeftConfig:
    """What decides the numbers."""

    rank: int
    alpha: float
    rslora: bool
    ranks: Patterns[int]
    alphas: Patterns[float]
    dora: bool = False
    lora_bias: bool = False
    bias: str = "none"
    """One of `BIASES`."""
    whole: frozenset[str] = frozenset()
    """Of the embedding and the head (`VOCABULARY`) those that were trained in full."""
    rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """And those of which some tokens' rows were."""

    def rank_of(self, path: str) -> int:
        """The rank that PEFT gives the module at `path`."""
        return self.ranks.get(path, self.rank)

    def scale_of(self, path: str, rank: int) -> float:
        """What B·A is multiplied by."""
        alpha = self.alphas.get(path, self.alpha)
        scale = alpha / math.sqrt(rank) if self.rslora else alpha / rank
        # Rounded to f32, as torch does when it multiplies an f32 tensor by it.
        return float(np.float32(scale))

    def unused(self) -> tuple[str, ...]:
        """Warnings of pattern keys that decided nothing, after all modules were asked about."""
        return tuple(
            f"{patterns.field} has {_short(key)}, which decides nothing: it matches no module that is adapted, or an "
            "earlier key matches first"
            for patterns in (self.ranks, self.alphas)
            for key in patterns.unused()
        )


def parse_config(config: Mapping[str, Any]) -> PeftConfig:
    """Checks every field of adapter_config.json."""
    kind = config.get("peft_type")
    if kind != "LORA":
        raise _refused("peft_type", kind, OTHER_METHOD)
    for name, value in config.items():
        if name in READ or name in IGNORED or value in _INACTIVE:
            continue
        raise _refused(name, value, FEATURES.get(name, UNKNOWN_FIELD))
    bias = config.get("bias") or "none"
    if bias not in BIASES:
        raise _refused("bias", bias, UNKNOWN_BIAS)
    start = config.get("init_lora_weights")
    if not (start is None or isinstance(start, bool) or (isinstance(start, str) and start.lower() in PLAIN_STARTS)):
        known = [feature for name, feature in STARTS.items() if str(start).lower().startswith(name)]
        raise _refused("init_lora_weights", start, known[0] if known else UNKNOWN_START)
    rslora, dora, lora_bias = (_flag(config, field) for field in ("use_rslora", "use_dora", "lora_bias"))
    if dora and lora_bias:
        raise _refused("use_dora with lora_bias", True, DORA_WITH_BIAS)
    return PeftConfig(
        rank=_rank("r", config.get("r", _RANK_DEFAULT)),
        alpha=_alpha("lora_alpha", config.get("lora_alpha", _ALPHA_DEFAULT)),
        rslora=rslora,
        dora=dora,
        lora_bias=lora_bias,
        bias=bias,
        whole=frozenset(_vocabulary("modules_to_save", name) for name in _list("modules_to_save", config)),
        rows=_rows(config),
        ranks=Patterns("rank_pattern", {k: _rank(f"rank_pattern[{k!r}]", v) for k, v in _map(config, "rank_pattern")}),
        alphas=Patterns(
            "alpha_pattern", {k: _alpha(f"alpha_pattern[{k!r}]", v) for k, v in _map(config, "alpha_pattern")}
        ),
    )


def _refused(field: str, value: Any, feature: Feature) -> Exception:
    return reject(feature.code, f"{field} = {_short(value)}: {feature.refusal}")


def _list(field: str, config: Mapping[str, Any]) -> list[Any]:
    value = config.get(field)
    if value in _INACTIVE:
        return []
    if not isinstance(value, list):
        raise _wrong(field, "a list", value)
    return value


def _vocabulary(field: str, name: Any) -> str:
    """The embedding or the head, by the end of a path to it."""
    last = name.rpartition(".")[2] if isinstance(name, str) else None
    if last not in VOCABULARY:
        raise _refused(field, name, OTHER_WHOLE)
    return str(last)


def _rows(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    field = "trainable_token_indices"
    value = config.get(field)
    given = value if isinstance(value, dict) else {EMBED: _list(field, config)}
    found: dict[str, tuple[int, ...]] = {}
    for key, ids in given.items():
        name = _vocabulary(field, key)
        if not isinstance(ids, list) or any(type(token) is not int or token < 0 for token in ids):
            raise _wrong(f"{field} of {name}", "a list of token ids", ids)
        if len(set(ids)) < len(ids) or name in found:
            raise reject("adapter_config", f"{field} of {name} names a token twice")
        if ids:
            found[name] = tuple(ids)
    return found


def _map(config: Mapping[str, Any], field: str) -> list[tuple[str, Any]]:
    value = config.get(field)
    if value is None:
        return []
    if not isinstance(value, dict):
        raise _wrong(field, "an object", value)
    return list(value.items())


def _flag(config: Mapping[str, Any], field: str) -> bool:
    value = config.get(field)
    if not (value is None or isinstance(value, bool)):
        raise _wrong(field, "true or false", value)
    return bool(value)


def _rank(field: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _wrong(field, "an integer from 1", value)
    return value


def _alpha(field: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
    except OverflowError:
        number = math.inf
    if not abs(number) <= _ALPHA_MAX:
        raise _wrong(field, "a finite number", value)
    return number


def _wrong(field: str, wanted: str, value: Any) -> Exception:
    return reject("adapter_config", f"{field} wants {wanted}, is {_short(value)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
