"""`ModelConfig` from the keys of a GGUF file, as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lorad.errors import ModelRejected
from lorad.models.config import ModelConfig, layer_range
from lorad.models.fields import Integers, integer, number, token_ids
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
    architecture = str(metadata.get("general.architecture", ""))
    if architecture not in FAMILIES:
        raise ModelRejected(
            f"architecture {architecture!r} isn't supported; supported: {', '.join(FAMILIES)}",
            code="model_architecture",
        )
    get = Integers(metadata, "GGUF: ", prefix=f"{architecture}.")
    heads, hidden = get("attention.head_count"), get("embedding_length")
    head_dim = get("attention.key_length", hidden // heads if heads > 0 else 0)
    for key, plain in (("attention.value_length", head_dim), ("rope.dimension_count", head_dim), ("expert_count", 0)):
        value = get(key, plain)
        if value != plain:
            raise ModelRejected(f"GGUF: {architecture}.{key} = {value} isn't supported", code="model_feature")
    # Only Gemma's converter writes a window: Mistral's and Qwen's drop it, so there it has no known meaning.
    for key in _UNKNOWN if architecture == "gemma3" else (*_UNKNOWN, _WINDOW, _PERIOD):
        if metadata.get(f"{architecture}.{key}"):
            raise ModelRejected(f"GGUF: {architecture}.{key} isn't supported", code="model_feature")
    if metadata.get(f"{architecture}.attention.causal") is False:
        raise ModelRejected(f"GGUF: {architecture}.attention.causal = False isn't supported", code="model_feature")
    vocab = metadata.get(f"{architecture}.vocab_size", len(metadata.get("tokenizer.ggml.tokens", ())))
    theta, scaling = rope_from_gguf(metadata, architecture)
    return ModelConfig(
        architecture=architecture,
        layers=get("block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=get("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate=get("feed_forward_length"),
        vocab=integer(vocab, "GGUF: vocab_size"),
        norm_eps=number(metadata.get(f"{architecture}.attention.layer_norm_rms_epsilon"), "GGUF: rms epsilon"),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_embeddings=tied,
        context_length=get("context_length"),
        bos_ids=token_ids(metadata.get("tokenizer.ggml.bos_token_id"), "GGUF: bos_token_id"),
        eos_ids=_ends(metadata),
        name=str(metadata.get("general.name") or name),
        **FAMILIES[architecture](metadata, get),
    )


def _gemma3(metadata: Mapping[str, Any], get: Integers) -> dict[str, Any]:
    """The norms' offset is in the file's weights already."""
    layers, hidden, window, period = get("block_count"), get("embedding_length"), get(_WINDOW), get(_PERIOD, 6)
    if window < 1 or period < 1:
        raise ModelRejected(f"GGUF: gemma3.{_WINDOW} = {window} by {period} isn't supported", code="model_feature")
    return {
        "windows": tuple(window if (layer + 1) % period else 0 for layer in layer_range(layers)),
        "local_rope_theta": number(metadata.get("gemma3.rope.freq_base_swa", 10000.0), "GGUF: rope.freq_base_swa"),
        "head_norms": True,
        "branch_norms": True,
        "activation": "gelu_tanh",
        "embed_scale": float(max(hidden, 0)) ** 0.5,
        "query_scalar": hidden // get("attention.head_count") if layers == _GEMMA3_27B_LAYERS else None,
    }


FAMILIES: dict[str, Callable[[Mapping[str, Any], Integers], dict[str, Any]]] = {
    "llama": lambda metadata, get: {},
    "qwen2": lambda metadata, get: {"qkv_bias": True},
    "qwen3": lambda metadata, get: {"head_norms": True},
    "gemma3": _gemma3,
}
"""By llama.cpp's name of the architecture, what isn't Llama's. Mistral's files say `llama`."""


def _ends(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """All the tokens that end an answer: end of text, of turn, of message."""
    found: dict[int, None] = {}
    for key in ("eos_token_id", "eot_token_id", "eom_token_id"):
        for value in token_ids(metadata.get(f"tokenizer.ggml.{key}"), f"GGUF: {key}"):
            found[value] = None
    return tuple(found)
