"""`ModelConfig`: the shape of a base model, whatever file describes it (`hf_config`, `gguf_config`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from lorad.errors import ModelRejected
from lorad.models.fields import positive
from lorad.models.rope import RopeScaling

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
"""The families whose differences `ModelConfig` can say."""

ACTIVATIONS = ("silu", "gelu_tanh")
"""What the gate of an MLP goes through."""

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""A layer's projections in the order that numbers them: in plans, page layouts and kernels."""

EMBED, HEAD = VOCABULARY = ("embed_tokens", "lm_head")
"""What else adapters adapt, numbered after those: the embedding, in the first layer, and the head, in the last."""

BIASED = ("q_proj", "k_proj", "v_proj")
"""Those that have a bias in the families with `qkv_bias`."""

INTEGER_MAX = 1 << 31
"""No dimension of a real model comes near; a larger one would only overflow later."""

LAYERS_MAX = 4096
"""Far above real models: lists by layer are made before the file's tensors are counted."""


class Module(NamedTuple):
    """One projection of a layer: y [out] = W [out, in] x [in]."""

    name: str
    in_features: int
    out_features: int


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a base model. All sizes are checked to be positive and to fit one another.

    What families differ in comes last; the defaults are Llama's.
    """

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
    qkv_bias: bool = False
    """q, k and v have biases."""
    head_norms: bool = False
    """Each head of q and k is normed before it's rotated."""
    branch_norms: bool = False
    """What attention and MLP give is normed before it's added to the residual."""
    norm_offset: float = 0.0
    """Added to every norm's weight as the file has it."""
    activation: str = "silu"
    embed_scale: float = 1.0
    """Factor of the embedding at the input; not of the head, where they are tied."""
    query_scalar: float | None = None
    """Scores are divided by its root; None: `head_dim`."""
    windows: tuple[int, ...] = ()
    """By layer, how many keys a query sees at most, its own included; 0: all. Empty: all in every layer."""
    local_rope_theta: float | None = None
    """Theta of the layers with a window, which scaling leaves alone; None: as in the others."""

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
        if self.layers > LAYERS_MAX:
            raise ModelRejected(f"the model's layers is {self.layers}, at most {LAYERS_MAX}", code="model_config")
        if self.heads % self.kv_heads:
            raise ModelRejected(
                f"{self.heads} attention heads can't share {self.kv_heads} key heads evenly", code="model_config"
            )
        if self.head_dim % 2:
            raise ModelRejected(f"head_dim {self.head_dim} is odd: rotary embedding needs pairs", code="model_config")
        for field in ("norm_eps", "rope_theta", "local_rope_theta", "embed_scale", "query_scalar"):
            value = getattr(self, field)
            if value is not None:
                positive(value, f"the model's {field}")
        for token in (*self.bos_ids, *self.eos_ids):
            if not 0 <= token < self.vocab:
                raise ModelRejected(
                    f"the model's text begins or ends with token {token}, its vocabulary has {self.vocab}",
                    code="model_config",
                )
        if self.activation not in ACTIVATIONS:
            raise ModelRejected(f"activation {self.activation!r} isn't supported", code="model_feature")
        if self.windows and len(self.windows) != self.layers:
            raise ModelRejected(f"{len(self.windows)} windows for {self.layers} layers", code="model_config")
        for window in self.windows:
            if not 0 <= window < INTEGER_MAX:
                raise ModelRejected(f"the model's sliding window is {window}", code="model_config")

    def replace(self, **changes: Any) -> ModelConfig:
        """A checked copy with other values."""
        return replace(self, **changes)

    @property
    def attention_scale(self) -> float:
        """Factor of the attention scores."""
        return math.pow(self.head_dim if self.query_scalar is None else self.query_scalar, -0.5)

    def window(self, layer: int) -> int | None:
        """How many keys a query of this layer sees at most; None: all."""
        return (self.windows[layer] or None) if self.windows else None

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

    def adaptable(self) -> tuple[Module, ...]:
        """All that adapters can adapt: `modules()`, then the embedding (a product with one-hot rows) and the head."""
        return (
            *self.modules(),
            Module(EMBED, self.vocab, self.hidden),
            Module(HEAD, self.hidden, self.vocab),
        )

    def weight_name(self, layer: int, module: str) -> str:
        """The canonical name of the weight that a module of `adaptable()` multiplies."""
        if module in VOCABULARY:
            return "embed" if module == EMBED or self.tie_embeddings else "head"
        return f"layers.{layer}.{module}"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight of the model by its canonical name, with its shape ([out, in] for matrices)."""
        found: dict[str, tuple[int, ...]] = {"embed": (self.vocab, self.hidden), "norm": (self.hidden,)}
        if not self.tie_embeddings:
            found["head"] = (self.vocab, self.hidden)
        for layer in range(self.layers):
            found[f"layers.{layer}.input_norm"] = (self.hidden,)
            found[f"layers.{layer}.post_norm"] = (self.hidden,)
            if self.branch_norms:
                found[f"layers.{layer}.attention_out_norm"] = (self.hidden,)
                found[f"layers.{layer}.mlp_out_norm"] = (self.hidden,)
            if self.head_norms:
                found[f"layers.{layer}.q_norm"] = found[f"layers.{layer}.k_norm"] = (self.head_dim,)
            for module in self.modules():
                found[f"layers.{layer}.{module.name}"] = (module.out_features, module.in_features)
                if self.qkv_bias and module.name in BIASED:
                    found[f"layers.{layer}.{module.name}.bias"] = (module.out_features,)
        return found


def layer_range(layers: int) -> range:
    """The layers of a model whose count isn't checked yet."""
    return range(min(max(layers, 0), LAYERS_MAX))
