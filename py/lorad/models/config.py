"""`ModelConfig`: the shape of a base model, from GGUF metadata or from a Hugging Face config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from lorad.errors import ModelRejected
from lorad.models.rope import RopeScaling, rope_from_gguf, rope_from_hf

ARCHITECTURES = ("llama",)
"""The architectures that have a file of their own beside this one."""

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""A layer's projections in the order that numbers them: in plans, page layouts and kernels."""

INTEGER_MAX = 1 << 31
"""No dimension of a real model comes near; a larger one would only overflow later."""


class Module(NamedTuple):
    """One projection of a layer: y [out] = W [out, in] x [in]."""

    name: str
    in_features: int
    out_features: int


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a base model. All sizes are checked to be positive and to fit one another."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_embeddings: bool
    context_length: int
    bos_ids: tuple[int, ...]
    eos_ids: tuple[int, ...]
    name: str

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            raise ModelRejected(
                f"architecture {self.architecture!r} isn't supported; supported: {', '.join(ARCHITECTURES)}",
                code="model_architecture",
            )
        for field in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "context_length"):
            value = getattr(self, field)
            if not 0 < value < INTEGER_MAX:
                raise ModelRejected(f"the model's {field} is {value}", code="model_config")
        if self.heads % self.kv_heads:
            raise ModelRejected(
                f"{self.heads} attention heads can't share {self.kv_heads} key heads evenly", code="model_config"
            )
        if self.head_dim % 2:
            raise ModelRejected(f"head_dim {self.head_dim} is odd: rotary embedding needs pairs", code="model_config")
        for field in ("norm_eps", "rope_theta"):
            value = getattr(self, field)
            if not (value > 0 and math.isfinite(value)):
                raise ModelRejected(f"the model's {field} is {value}", code="model_config")

    def replace(self, **changes: Any) -> ModelConfig:
        """A checked copy with other values."""
        return replace(self, **changes)

    def modules(self) -> tuple[Module, ...]:
        """The projections of a layer, in the order of `MODULES`."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return (
            Module("q_proj", self.hidden, queries),
            Module("k_proj", self.hidden, keys),
            Module("v_proj", self.hidden, keys),
            Module("o_proj", queries, self.hidden),
            Module("gate_proj", self.hidden, self.intermediate),
            Module("up_proj", self.hidden, self.intermediate),
            Module("down_proj", self.intermediate, self.hidden),
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight of the model by its canonical name, with its shape ([out, in] for matrices)."""
        found: dict[str, tuple[int, ...]] = {"embed": (self.vocab, self.hidden), "norm": (self.hidden,)}
        if not self.tie_embeddings:
            found["head"] = (self.vocab, self.hidden)
        for layer in range(self.layers):
            found[f"layers.{layer}.input_norm"] = (self.hidden,)
            found[f"layers.{layer}.post_norm"] = (self.hidden,)
            for module in self.modules():
                found[f"layers.{layer}.{module.name}"] = (module.out_features, module.in_features)
        return found


def config_from_hf(config: Mapping[str, Any], name: str) -> ModelConfig:
    """From config.json of a Hugging Face folder. Whatever would change the numbers and isn't known is refused."""
    if config.get("model_type") not in ARCHITECTURES:
        raise ModelRejected(
            f"model_type {config.get('model_type')!r} isn't supported; supported: {', '.join(ARCHITECTURES)}",
            code="model_architecture",
        )
    for feature, plain in HF_PLAIN.items():
        value = config.get(feature)
        if value is not None and value not in plain:
            raise ModelRejected(f"config.json: {feature} = {value!r} isn't supported", code="model_feature")
    get = _Integers(config, "config.json: ")
    heads, hidden = get("num_attention_heads"), get("hidden_size")
    theta, scaling = rope_from_hf(config)
    return ModelConfig(
        architecture="llama",
        layers=get("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=get("num_key_value_heads", heads),
        head_dim=get("head_dim", hidden // heads if heads > 0 else 0),
        intermediate=get("intermediate_size"),
        vocab=get("vocab_size"),
        norm_eps=_number(config.get("rms_norm_eps", 1e-6), "config.json: rms_norm_eps"),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_embeddings=config.get("tie_word_embeddings") is True,
        context_length=get("max_position_embeddings", 2048),
        bos_ids=_ids(config.get("bos_token_id"), "config.json: bos_token_id"),
        eos_ids=_ids(config.get("eos_token_id"), "config.json: eos_token_id"),
        name=name,
    )


HF_PLAIN: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "hidden_act": ("silu", "swish"),
    "quantization_config": (),
    "sliding_window": (),
    "partial_rotary_factor": (1, 1.0),
}
"""Fields of config.json that change the numbers, with the values (beside null) that mean the plain model."""


def config_from_gguf(metadata: Mapping[str, Any], *, tied: bool, name: str) -> ModelConfig:
    """From a GGUF file's keys; `tied`: the file has no output matrix of its own."""
    architecture = str(metadata.get("general.architecture", ""))
    if architecture not in ARCHITECTURES:
        raise ModelRejected(
            f"architecture {architecture!r} isn't supported; supported: {', '.join(ARCHITECTURES)}",
            code="model_architecture",
        )
    get = _Integers(metadata, "GGUF: ", prefix=f"{architecture}.")
    heads, hidden = get("attention.head_count"), get("embedding_length")
    head_dim = get("attention.key_length", hidden // heads if heads > 0 else 0)
    for key, plain in (("attention.value_length", head_dim), ("rope.dimension_count", head_dim), ("expert_count", 0)):
        value = get(key, plain)
        if value != plain:
            raise ModelRejected(f"GGUF: {architecture}.{key} = {value} isn't supported", code="model_feature")
    for key in ("attention.sliding_window", "attention.clamp_kqv", "attention.max_alibi_bias", "logit_scale"):
        if metadata.get(f"{architecture}.{key}"):
            raise ModelRejected(f"GGUF: {architecture}.{key} isn't supported", code="model_feature")
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
        vocab=_integer(vocab, "GGUF: vocab_size"),
        norm_eps=_number(metadata.get(f"{architecture}.attention.layer_norm_rms_epsilon"), "GGUF: rms epsilon"),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_embeddings=tied,
        context_length=get("context_length"),
        bos_ids=_ids(metadata.get("tokenizer.ggml.bos_token_id"), "GGUF: bos_token_id"),
        eos_ids=_gguf_ends(metadata),
        name=str(metadata.get("general.name") or name),
    )


def _gguf_ends(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """All the tokens that end an answer: end of text, of turn, of message."""
    found: dict[int, None] = {}
    for key in ("eos_token_id", "eot_token_id", "eom_token_id"):
        for value in _ids(metadata.get(f"tokenizer.ggml.{key}"), f"GGUF: {key}"):
            found[value] = None
    return tuple(found)


class _Integers:
    """Required and optional integers of a mapping, refused by name."""

    def __init__(self, source: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._source, self._where, self._prefix = source, where, prefix

    def __call__(self, name: str, default: int | None = None) -> int:
        value = self._source.get(self._prefix + name)
        if value is None:
            if default is None:
                raise ModelRejected(f"{self._where}{self._prefix}{name} is missing", code="model_config")
            return default
        return _integer(value, f"{self._where}{self._prefix}{name}")


def _integer(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelRejected(f"{what} is {value!r}, wants an integer", code="model_config")
    return value


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelRejected(f"{what} is {value!r}, wants a number", code="model_config")
    return float(value)


def _ids(value: Any, what: str) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(_integer(item, what) for item in (value if isinstance(value, list | tuple) else [value]))
