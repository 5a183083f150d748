"""`ModelConfig` from the keys of a GGUF file, as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lorad.errors import ModelRejected
from lorad.models.config import ModelConfig, layer_range
from lorad.models.fields import shown
from lorad.models.gguf_keys import Keys, end_ids
from lorad.models.rope import rope_from_gguf

_UNKNOWN = (
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "embedding_scale",
    "residual_scale",
)
"""Keys that change the numbers, unless they are 0."""
_WINDOW, _PERIOD = "attention.sliding_window", "attention.sliding_window_pattern"

_GEMMA3_27B_LAYERS = 62
"""The size whose scores have another scale; its file doesn't say so, llama.cpp knows it by its layers too."""


def config_from_gguf(metadata: Mapping[str, Any], *, tied: bool, name: str) -> ModelConfig:
    """From a GGUF file's keys; `tied`: the file has no output matrix of its own."""
    everything = Keys(metadata)
    architecture = everything.text("general.architecture", "")
    if architecture not in FAMILIES:
        raise ModelRejected(
            f"architecture {shown(architecture)} isn't supported; supported: {', '.join(FAMILIES)}",
            code="model_architecture",
        )
    keys, ggml = everything.within(f"{architecture}."), everything.within("tokenizer.ggml.")
    heads, hidden = keys.integer("attention.head_count"), keys.integer("embedding_length")
    head_dim, source = _head_dim(keys, architecture)
    for key in ("attention.value_length", "rope.dimension_count"):
        value = keys.integer(key, head_dim)
        if value != head_dim:
            # Either may be wrong: both are named.
            raise ModelRejected(
                f"GGUF: {architecture}.{key} = {value} beside heads of {head_dim} ({source}) isn't supported",
                code="model_feature",
            )
    if (experts := keys.integer("expert_count", 0)) != 0:
        raise ModelRejected(f"GGUF: {architecture}.expert_count = {experts} isn't supported", code="model_feature")
    # Only Gemma's converter writes a window: Mistral's and Qwen's drop it, so there it has no known meaning.
    for key in _UNKNOWN if architecture == "gemma3" else (*_UNKNOWN, _WINDOW, _PERIOD):
        if keys.says(key):
            raise ModelRejected(f"GGUF: {architecture}.{key} isn't supported", code="model_feature")
    if not keys.flag("attention.causal", True):
        raise ModelRejected(f"GGUF: {architecture}.attention.causal = False isn't supported", code="model_feature")
    vocab = keys.integer("vocab_size") if keys.has("vocab_size") else len(ggml.texts("tokens", []))
    theta, scaling = rope_from_gguf(keys)
    return ModelConfig(
        architecture=architecture,
        layers=keys.integer("block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=keys.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate=keys.integer("feed_forward_length"),
        vocab=vocab,
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_embeddings=tied,
        context_length=keys.integer("context_length"),
        bos_ids=ggml.token_ids("bos_token_id"),
        eos_ids=end_ids(ggml),
        name=everything.text("general.name", "") or name,
        **FAMILIES[architecture](keys),
    )


def _head_dim(keys: Keys, architecture: str) -> tuple[int, str]:
    """The width of a head, and which keys say so."""
    if keys.has("attention.key_length"):
        return keys.integer("attention.key_length"), f"{architecture}.attention.key_length"
    heads, hidden = keys.integer("attention.head_count"), keys.integer("embedding_length")
    source = f"{architecture}.embedding_length = {hidden} over {architecture}.attention.head_count = {heads}"
    if heads < 1 or hidden < 1 or hidden % heads:
        raise ModelRejected(f"GGUF: {source} is no whole width of a head", code="model_config")
    return hidden // heads, source


def _gemma3(keys: Keys) -> dict[str, Any]:
    """The norms' offset is in the file's weights already."""
    layers, hidden = keys.integer("block_count"), keys.integer("embedding_length")
    window, period = keys.integer(_WINDOW), keys.integer(_PERIOD, 6)
    if window < 1 or period < 1:
        raise ModelRejected(f"GGUF: gemma3.{_WINDOW} = {window} by {period} isn't supported", code="model_feature")
    return {
        "windows": tuple(window if (layer + 1) % period else 0 for layer in layer_range(layers)),
        "local_rope_theta": keys.number("rope.freq_base_swa", 10000.0),
        "head_norms": True,
        "branch_norms": True,
        "activation": "gelu_tanh",
        "embed_scale": float(max(hidden, 0)) ** 0.5,
        "query_scalar": hidden // keys.integer("attention.head_count") if layers == _GEMMA3_27B_LAYERS else None,
    }


FAMILIES: dict[str, Callable[[Keys], dict[str, Any]]] = {
    "llama": lambda keys: {},
    "qwen2": lambda keys: {"qkv_bias": True},
    "qwen3": lambda keys: {"head_norms": True},
    "gemma3": _gemma3,
}
"""By llama.cpp's name of the architecture, what isn't Llama's. Mistral's files say `llama`."""
