"""The Llama family: Llama 2 and 3, SmolLM2, and what shares their shape.

    h   = embed(ids)
    for each layer:
        h += o( attention( rope( q(n), k(n) ), v(n) ) )      n = rms_norm(h)
        h += down( silu(gate(n)) * up(n) )                   n = rms_norm(h)
    logits = head( rms_norm(h) )                             for the rows that are sampled

q, k, v are one product, so are gate and up; each of the seven takes its LoRA contribution from the tiles of the row's
adapter. All activations are f32 in arrays that are allocated once, for `tokens_max` tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from lorad.models.config import ModelConfig
from lorad.models.forms import F32, Linear
from lorad.models.linear import make_embedding, make_linear
from lorad.models.operators import Operators
from lorad.models.weights import Weights
from lorad.worker.ops import Ops, StepArrays


class Layer(NamedTuple):
    """The weights of one layer."""

    input_norm: F32
    qkv: Linear
    o: Linear
    post_norm: F32
    gate_up: Linear
    down: Linear


class Llama:
    """A model bound to the operators of a worker."""

    def __init__(
        self,
        weights: Weights,
        ops: Ops,
        operators: Operators,
        *,
        tokens_max: int,
        rows_max: int,
        dequantize: bool,
    ) -> None:
        config = self.config = weights.config
        self.ops = ops
        self.q_width = config.heads * config.head_dim
        self.kv_width = config.kv_heads * config.head_dim

        def norm(name: str) -> F32:
            return weights.tensor(name).dequantize().contiguous().numpy()

        def linear(*names: str) -> Linear:
            return make_linear([weights.tensor(name) for name in names], operators, dequantize=dequantize)

        self.embed = make_embedding(
            weights.tensor("embed"), operators, dequantize=dequantize, is_head=config.tie_embeddings
        )
        self.layers = [
            Layer(
                input_norm=norm(f"layers.{i}.input_norm"),
                qkv=linear(*(f"layers.{i}.{name}" for name in ("q_proj", "k_proj", "v_proj"))),
                o=linear(f"layers.{i}.o_proj"),
                post_norm=norm(f"layers.{i}.post_norm"),
                gate_up=linear(f"layers.{i}.gate_proj", f"layers.{i}.up_proj"),
                down=linear(f"layers.{i}.down_proj"),
            )
            for i in range(config.layers)
        ]
        self.norm = norm("norm")
        self.head = self.embed.as_linear() if config.tie_embeddings else linear("head")
        self.cos, self.sin = rope_tables(config)

        def activation(rows: int, width: int) -> F32:
            return np.zeros((rows, width), dtype=np.float32)

        self.hidden = activation(tokens_max, config.hidden)
        self.normed = activation(tokens_max, config.hidden)
        self.qkv = activation(tokens_max, self.q_width + 2 * self.kv_width)
        self.attention = activation(tokens_max, self.q_width)
        self.branch = activation(tokens_max, config.hidden)
        self.gate_up = activation(tokens_max, 2 * config.intermediate)
        self.gated = activation(tokens_max, config.intermediate)
        self.last = activation(rows_max, config.hidden)
        self.logits = activation(rows_max, config.vocab)

    @property
    def bytes(self) -> int:
        """Bytes of all weights as they are held."""
        return (
            self.embed.bytes
            + sum(layer.qkv.bytes + layer.o.bytes + layer.gate_up.bytes + layer.down.bytes for layer in self.layers)
            + (0 if self.config.tie_embeddings else self.head.bytes)
        )

    def forward(self, step: StepArrays) -> F32:
        """Computes a step; returns the logits f32 [samples, vocab] of the rows to sample, in plan order."""
        config, ops, n = self.config, self.ops, step.tokens
        q_width, kv_width = self.q_width, self.kv_width
        hidden, normed, branch = self.hidden[:n], self.normed[:n], self.branch[:n]
        qkv, attention = self.qkv[:n], self.attention[:n]
        gate_up, gated = self.gate_up[:n], self.gated[:n]

        self.embed(hidden, step.token_id)
        for index, layer in enumerate(self.layers):
            if index == 0:
                ops.rms_norm(normed, hidden, layer.input_norm, config.norm_eps)
            else:  # the last layer's branch joins here: one pass over `hidden` instead of two
                ops.add_rms_norm(normed, hidden, branch, layer.input_norm, config.norm_eps)
            layer.qkv(qkv, normed)
            ops.lora(step, qkv, normed, index, Q_K_V, (0, q_width, q_width + kv_width))
            ops.rope_write(step, qkv, self.cos, self.sin, index)
            ops.attention(step, attention, qkv, index)
            layer.o(branch, attention)
            ops.lora(step, branch, attention, index, ATTENTION_OUT, (0,))
            ops.add_rms_norm(normed, hidden, branch, layer.post_norm, config.norm_eps)
            layer.gate_up(gate_up, normed)
            ops.lora(step, gate_up, normed, index, GATE_UP, (0, config.intermediate))
            ops.silu_mul(gated, gate_up)
            layer.down(branch, gated)
            ops.lora(step, branch, gated, index, DOWN, (0,))
        # Only the rows that are sampled go through the head, the largest product of small models.
        samples = len(step.sample_token)
        last = self.last[:samples]
        np.add(hidden[step.sample_token], branch[step.sample_token], out=last)
        ops.rms_norm(last, last, self.norm, config.norm_eps)
        logits = self.logits[:samples]
        self.head(logits, last)
        return logits


# Indices into `ModelConfig.modules()`.
Q_K_V = (0, 1, 2)
ATTENTION_OUT = (3,)
GATE_UP = (4, 5)
DOWN = (6,)


def rope_tables(config: ModelConfig) -> tuple[F32, F32]:
    """cos and sin, f32 [context, head_dim / 2], by Su et al. 2021 (arXiv:2104.09864), with Llama 3's scaling if set.

    The frequencies are computed as transformers does (f32), so that long positions agree with it.
    """
    half = config.head_dim // 2
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    if config.rope_scaling is not None:
        frequencies = config.rope_scaling.apply(frequencies)
    angles = torch.outer(torch.arange(config.context_length).float(), frequencies)
    assert angles.shape == (config.context_length, half)
    return angles.cos().numpy(), angles.sin().numpy()
