"""`ModelConfig` from the config.json of a Hugging Face folder, as transformers understands it.

Whatever would change the numbers and isn't known is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lorad.errors import ModelRejected
from lorad.models.config import ModelConfig, layer_range
from lorad.models.fields import Integers, flag, number, shown, token_ids
from lorad.models.rope import rope_from_hf, ropes_from_hf

Raw = Mapping[str, Any]
Plain = dict[str, tuple[Any, ...]]

PLAIN: Plain = {
    "mlp_bias": (False,),
    "quantization_config": (),
    "partial_rotary_factor": (1, 1.0),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "use_bidirectional_attention": (False,),
    "use_mrope": (False,),
}
"""Fields that change the numbers, with the values (beside null) that mean the plain model."""

_SILU: Plain = {"hidden_act": ("silu", "swish")}
_NO_BIAS: Plain = {"attention_bias": (False,)}
_ONE_WINDOW: Plain = {"layer_types": ()}


class Family(NamedTuple):
    """What a model_type means beside what all share."""

    architecture: str
    plain: Plain
    """Beside `PLAIN`."""
    defaults: Raw
    """transformers' values of fields that are left out, where they aren't Llama's."""
    differences: Callable[[Raw], dict[str, Any]]
    """Fields of `ModelConfig`."""


def config_from_hf(config: Raw, name: str) -> ModelConfig:
    """From config.json; `name` of the model, for people."""
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None:
        raise ModelRejected(
            f"model_type {shown(config.get('model_type'))} isn't supported; supported: {', '.join(FAMILIES)}",
            code="model_architecture",
        )
    config = {**family.defaults, **config}
    for feature, plain in {**PLAIN, **family.plain}.items():
        value = config.get(feature)
        if value is not None and value not in plain:
            raise ModelRejected(f"config.json: {feature} = {shown(value)} isn't supported", code="model_feature")
    get = _integers(config)
    heads, hidden = get("num_attention_heads"), get("hidden_size")
    values: dict[str, Any] = {
        "architecture": family.architecture,
        "layers": get("num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": get("num_key_value_heads", heads),
        "head_dim": get("head_dim", hidden // heads if heads > 0 else 0),
        "intermediate": get("intermediate_size"),
        "vocab": get("vocab_size"),
        "norm_eps": number(config.get("rms_norm_eps", 1e-6), "config.json: rms_norm_eps"),
        "tie_embeddings": _flag(config, "tie_word_embeddings"),
        "context_length": get("max_position_embeddings", 2048),
        "bos_ids": token_ids(config.get("bos_token_id"), "config.json: bos_token_id"),
        "eos_ids": token_ids(config.get("eos_token_id"), "config.json: eos_token_id"),
        "name": name,
    }
    return ModelConfig(**values, **family.differences(config))


def _integers(config: Raw) -> Integers:
    return Integers(config, "config.json: ")


def _flag(config: Raw, name: str) -> bool:
    """Null is false, as in transformers."""
    return False if config.get(name) is None else flag(config[name], f"config.json: {name}")


def _rope(config: Raw) -> dict[str, Any]:
    theta, scaling = rope_from_hf(config)
    return {"rope_theta": theta, "rope_scaling": scaling}


def _mistral(config: Raw) -> dict[str, Any]:
    return _rope(config) | {"windows": _windows(config, lambda layer: config["sliding_window"] is not None)}


def _qwen2(config: Raw) -> dict[str, Any]:
    return _rope(config) | {"windows": _qwen_windows(config), "qkv_bias": True}


def _qwen3(config: Raw) -> dict[str, Any]:
    return _rope(config) | {"windows": _qwen_windows(config), "head_norms": True}


def _gemma3(config: Raw) -> dict[str, Any]:
    get = _integers(config)
    theta, scaling, local_theta = ropes_from_hf(config)
    period = get("sliding_window_pattern")
    if period < 1:
        raise ModelRejected(f"config.json: sliding_window_pattern is {period}", code="model_config")
    return {
        "rope_theta": theta,
        "rope_scaling": scaling,
        "local_rope_theta": local_theta,
        "windows": _windows(config, lambda layer: (layer + 1) % period != 0),
        "head_norms": True,
        "branch_norms": True,
        "norm_offset": 1.0,
        "activation": "gelu_tanh",
        "embed_scale": float(max(get("hidden_size"), 0)) ** 0.5,
        "query_scalar": number(config["query_pre_attn_scalar"], "config.json: query_pre_attn_scalar"),
    }


def _qwen_windows(config: Raw) -> tuple[int, ...]:
    """`sliding_window` counts only where `use_sliding_window` is set, and then from layer `max_window_layers` on."""
    if not _flag(config, "use_sliding_window"):
        config = {**config, "sliding_window": None}
    full = _integers(config)("max_window_layers")
    return _windows(config, lambda layer: config["sliding_window"] is not None and layer >= full)


def _windows(config: Raw, is_local: Callable[[int], bool]) -> tuple[int, ...]:
    """The window of each layer, by `layer_types` if it's there, else by the family's rule."""
    layers = _integers(config)("num_hidden_layers")
    types = config.get("layer_types")
    if types is None:
        local = [is_local(layer) for layer in layer_range(layers)]
    else:
        if not isinstance(types, list) or len(types) != layers:
            raise ModelRejected(f"config.json: layer_types doesn't name {layers} layers", code="model_config")
        for kind in types:
            if kind not in ("full_attention", "sliding_attention"):
                raise ModelRejected(f"config.json: layer_types has {shown(kind)}, not supported", code="model_feature")
        local = [kind == "sliding_attention" for kind in types]
    if not any(local):
        return ()
    window = _window(config)
    return tuple(window if here else 0 for here in local)


def _window(config: Raw) -> int:
    window = _integers(config)("sliding_window")
    if window < 1:
        # transformers would let a query see nothing.
        raise ModelRejected(f"config.json: sliding_window is {window}", code="model_config")
    return window


_QWEN_DEFAULTS = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}

FAMILIES = {
    "llama": Family("llama", _SILU | _NO_BIAS | _ONE_WINDOW | {"sliding_window": ()}, {}, _rope),
    "mistral": Family(
        "mistral",
        _SILU | _NO_BIAS | _ONE_WINDOW,
        {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
        _mistral,
    ),
    "qwen2": Family("qwen2", _SILU, _QWEN_DEFAULTS, _qwen2),
    "qwen3": Family("qwen3", _SILU | _NO_BIAS, _QWEN_DEFAULTS | {"head_dim": 128}, _qwen3),
    "gemma3_text": Family(
        "gemma3",
        _NO_BIAS | {"hidden_activation": ("gelu_pytorch_tanh",)},
        {
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
        },
        _gemma3,
    ),
}
