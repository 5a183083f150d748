"""The decoder that all supported families share: Llama, Mistral, Qwen 2 and 3, Gemma 3.

    h   = embed(ids) [· scale]
    for each layer:
        h += [norm] o( attention( rope( [norm] q(n), [norm] k(n) ), v(n) ) )      n = rms_norm(h)
        h += [norm] down( act(gate(n)) * up(n) )                                  n = rms_norm(h)
    logits = head( rms_norm(h) )                                                  for the rows that are sampled

What is in brackets, biases, windows and a layer's rotary table are the model's own: `ModelConfig` says which.

q, k, v are one product, so are gate and up; each of the seven, the embedding and the head take their LoRA contribution
from the tiles of the row's adapter. All activations are f32 in arrays that are allocated once, for `tokens_max` tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lorad import _core
from lorad.models.forms import F32, Linear
from lorad.models.linear import make_embedding, make_linear
from lorad.models.operators import Operators
from lorad.models.products import Stack, layer_stacks
from lorad.models.rope import RopeScaling, rope_frequencies
from lorad.models.weights import Weights
from lorad.worker.ops import HeadNorms, Ops, StepArrays


class Layer(NamedTuple):
    """The weights of one layer, and what it sees; None: the family hasn't got it."""

    input_norm: F32
    qkv: Linear
    head_norms: HeadNorms | None
    cos: F32
    sin: F32
    window: int | None
    o: Linear
    attention_out_norm: F32 | None
    post_norm: F32
    gate_up: Linear
    down: Linear
    mlp_out_norm: F32 | None


class Decoder:
    """A model bound to the operators of a worker."""

    def __init__(
        self,
        weights: Weights,
        ops: Ops,
        operators: Operators,
        *,
        tokens_max: int,
        rows_max: int,
        positions_max: int,
        dequantize: bool,
    ) -> None:
        """`positions_max`: tokens of the longest row, for which rotary tables are made."""
        config = self.config = weights.config
        self.ops = ops
        self.q_width = config.heads * config.head_dim
        self.kv_width = config.kv_heads * config.head_dim

        def linear(stack: Stack) -> Linear:
            biases = [weights.tensor(f"{name}.bias") for name in stack.names if f"{name}.bias" in shapes]
            parts = [weights.tensor(name) for name in stack.names]
            return make_linear(parts, biases, operators, dequantize=dequantize, fine=stack.fine)

        def norm(name: str) -> F32:
            return weights.tensor(name).values() + np.float32(config.norm_offset)

        def norm_if(name: str) -> F32 | None:
            return norm(name) if name in shapes else None

        shapes = config.shapes()
        everywhere = local = rope_tables(config.head_dim, positions_max, config.rope_theta, config.rope_scaling)
        if config.local_rope_theta is not None:
            local = rope_tables(config.head_dim, positions_max, config.local_rope_theta, None)

        def layer(index: int) -> Layer:
            at = f"layers.{index}"
            window = config.window(index)
            cos, sin = everywhere if window is None else local
            qkv, o, gate_up, down = layer_stacks(index)
            return Layer(
                input_norm=norm(f"{at}.input_norm"),
                qkv=linear(qkv),
                head_norms=HeadNorms(norm(f"{at}.q_norm"), norm(f"{at}.k_norm"), config.norm_eps)
                if config.head_norms
                else None,
                cos=cos,
                sin=sin,
                window=window,
                o=linear(o),
                attention_out_norm=norm_if(f"{at}.attention_out_norm"),
                post_norm=norm(f"{at}.post_norm"),
                gate_up=linear(gate_up),
                down=linear(down),
                mlp_out_norm=norm_if(f"{at}.mlp_out_norm"),
            )

        self.embed = make_embedding(
            weights.tensor("embed"), operators, dequantize=dequantize, is_head=config.tie_embeddings
        )
        self.layers = [layer(index) for index in range(config.layers)]
        self.norm = norm("norm")
        self.head = self.embed.as_linear() if config.tie_embeddings else linear(Stack(("head",)))

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
        eps, scale = config.norm_eps, config.attention_scale
        q_width, kv_width = self.q_width, self.kv_width
        hidden, normed, branch = self.hidden[:n], self.normed[:n], self.branch[:n]
        qkv, attention = self.qkv[:n], self.attention[:n]
        gate_up, gated = self.gate_up[:n], self.gated[:n]
        adapters = ops.adapters(step)

        def delta(layer: int, modules: Modules, *columns: int) -> _core.Delta | None:
            return None if adapters is None else (adapters, layer, modules, columns)

        self.embed(hidden, step.token_id)
        if adapters is not None:
            ops.lora_embed(hidden, step.token_id, config.vocab, (adapters, 0, EMBEDDING, (0,)))
        if config.embed_scale != 1.0:
            np.multiply(hidden, np.float32(config.embed_scale), out=hidden)
        for index, layer in enumerate(self.layers):
            if index == 0:
                ops.rms_norm(normed, hidden, layer.input_norm, eps)
            else:  # the last layer's branch joins here: one pass over `hidden` instead of two
                ops.add_rms_norm(normed, hidden, branch, layer.input_norm, eps)
            layer.qkv(qkv, normed, delta(index, Q_K_V, 0, q_width, q_width + kv_width))
            ops.rope_write(step, qkv, layer.cos, layer.sin, index, layer.head_norms)
            ops.attention(step, attention, qkv, index, scale, layer.window)
            layer.o(branch, attention, delta(index, ATTENTION_OUT, 0))
            if layer.attention_out_norm is not None:
                ops.rms_norm(branch, branch, layer.attention_out_norm, eps)
            ops.add_rms_norm(normed, hidden, branch, layer.post_norm, eps)
            mlp = delta(index, GATE_UP, 0, config.intermediate)
            layer.gate_up.gated(gated, gate_up, normed, config.activation, mlp)
            layer.down(branch, gated, delta(index, DOWN, 0))
            if layer.mlp_out_norm is not None:
                ops.rms_norm(branch, branch, layer.mlp_out_norm, eps)
        return self.logits_of(step)

    def logits_of(self, step: StepArrays) -> F32:
        """The logits of `step.sample_token`, ascending, at most as many as rows, of the step that was computed last."""
        config, ops = self.config, self.ops
        # Only the rows that are sampled go through the head, the largest product of small models.
        samples = len(step.sample_token)
        last = self.last[:samples]
        np.add(self.hidden[step.sample_token], self.branch[step.sample_token], out=last)
        ops.rms_norm(last, last, self.norm, config.norm_eps)
        logits = self.logits[:samples]
        sampled = ops.sampled_adapters(step)
        self.head(logits, last, None if sampled is None else (sampled, config.layers - 1, OUTPUT, (0,)))
        return logits


Modules = tuple[int, ...]
"""Indices into `ModelConfig.adaptable()` of those that share their input."""
Q_K_V: Modules = (0, 1, 2)
ATTENTION_OUT: Modules = (3,)
GATE_UP: Modules = (4, 5)
DOWN: Modules = (6,)
EMBEDDING: Modules = (7,)
OUTPUT: Modules = (8,)


def rope_tables(head_dim: int, positions: int, theta: float, scaling: RopeScaling | None) -> tuple[F32, F32]:
    """cos and sin, f32 [positions, head_dim / 2], by Su et al. 2021 (arXiv:2104.09864)."""
    angles = np.outer(np.arange(positions, dtype=np.float32), rope_frequencies(head_dim, theta, scaling))
    assert angles.shape == (positions, head_dim // 2) and angles.dtype == np.float32
    return np.cos(angles), np.sin(angles)
