"""The decoder of `lorad.models.decoder` on a device: the same formulas, of kernels and torch's products.

Nothing here depends on what is in a step, only on its `Shape`: so it's what a graph captures.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lorad.kernels.lora.table import Table
from lorad.kernels.pages import Pages
from lorad.kernels.rope.kernel import HeadNorms
from lorad.models.decoder import ATTENTION_OUT, DOWN, EMBEDDING, GATE_UP, OUTPUT, Q_K_V, Modules, rope_tables
from lorad.models.products import Stack, layer_stacks
from lorad.models.weights import Tensors
from lorad.worker.gpu.buffers import QUERIES, ROWS, SAMPLE_TILES, TILES, TOKENS, Sections
from lorad.worker.gpu.collective import Collective
from lorad.worker.gpu.linear import Dense, Fixed, FourBit, Linear, Workspace, floats, four_bit, stacked, vector
from lorad.worker.gpu.operators import Operators
from lorad.worker.gpu.workspaces import Workspaces
from lorad.worker.limits import Limits


class Shape(NamedTuple):
    """How much of each buffer a step looks at. What is real of it stands in the buffers' counts."""

    tokens: int
    rows: int
    samples: int
    tiles: int
    """0: no adapter kernels are started."""
    sample_tiles: int
    queries: int
    """Blocks of attention; 0: each row has one token, and its keys are split instead."""


class Layer(NamedTuple):
    """The weights of one layer, and what it sees; None: the family hasn't got it."""

    input_norm: Tensor
    qkv: Linear
    head_norms: HeadNorms | None
    cos: Tensor
    sin: Tensor
    window: int | None
    o: Linear
    attention_out_norm: Tensor | None
    post_norm: Tensor
    gate_up: Linear
    down: Linear
    mlp_out_norm: Tensor | None


class DeviceDecoder:
    """A model bound to a worker's pages, table and buffers."""

    def __init__(
        self,
        weights: Tensors,
        operators: Operators,
        *,
        dtype: torch.dtype,
        device: torch.device,
        pages: Pages,
        table: Table,
        inputs: Sections[Tensor],
        limits: Limits,
        rank_max: int,
        deterministic: bool,
        dequantize: bool,
        collective: Collective,
    ) -> None:
        """`dtype`: of weights and activations. `rank_max`: of any adapter. `collective`: of the ranks that the model is
        divided among; `weights` are this one's."""
        config = self.config = weights.config
        self._operators, self._pages, self._table, self._inputs = operators, pages, table, inputs
        self._deterministic = deterministic
        self._collective = collective
        self._widths = tuple(module.out_features for module in config.adaptable())
        self._space = Workspaces(config, limits, rank_max, device)
        self._products = Workspace()
        self.q_width = config.heads * config.head_dim
        self.kv_width = config.kv_heads * config.head_dim
        shapes = config.shapes()

        def linear(stack: Stack) -> Linear:
            names = [f"{name}.bias" for name in stack.names if f"{name}.bias" in shapes]
            biases = [vector(weights.tensor(name).values(), device) for name in names]
            bias = torch.cat(biases).to(dtype) if biases else None
            parts = [weights.tensor(name) for name in stack.names]
            narrow = None if dequantize else four_bit(parts, device)
            if narrow is not None:
                return FourBit(narrow, bias, operators.int4_matmul, self._products)
            return self._linear(stacked(parts, dtype, device), bias)

        def norm(name: str) -> Tensor:
            return vector(weights.tensor(name).values() + config.norm_offset, device)

        def norm_if(name: str) -> Tensor | None:
            return norm(name) if name in shapes else None

        def rope(theta: float, scaled: bool) -> tuple[Tensor, Tensor]:
            scaling = config.rope_scaling if scaled else None
            cos, sin = rope_tables(config.head_dim, limits.sequence_tokens, theta, scaling)
            return vector(cos, device), vector(sin, device)

        everywhere = local = rope(config.rope_theta, scaled=True)
        if config.local_rope_theta is not None:
            local = rope(config.local_rope_theta, scaled=False)

        def layer(index: int) -> Layer:
            at, window = f"layers.{index}", config.window(index)
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

        self.embed = floats(weights.tensor("embed")).to(device=device, dtype=dtype)
        self.layers = [layer(index) for index in range(config.layers)]
        self.norm = norm("norm")
        self.head = self._linear(self.embed, None) if config.tie_embeddings else linear(Stack(("head",)))
        self._products.take(device)

        def activation(rows: int, width: int) -> Tensor:
            return torch.zeros((rows, width), dtype=dtype, device=device)

        self.hidden = activation(limits.tokens, config.hidden)
        self.normed = activation(limits.tokens, config.hidden)
        self.qkv = activation(limits.tokens, self.q_width + 2 * self.kv_width)
        self.attention = activation(limits.tokens, self.q_width)
        self.branch = activation(limits.tokens, config.hidden)
        self.gate_up = activation(limits.tokens, 2 * config.intermediate)
        self.gated = activation(limits.tokens, config.intermediate)
        self.last = activation(limits.rows, config.hidden)
        self.last_branch = activation(limits.rows, config.hidden)
        self.logits = activation(limits.rows, config.vocab)
        head_rows = self._widths[OUTPUT[0]]
        self._own_logits = self.logits if collective.world == 1 else activation(limits.rows, head_rows)

    def _linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        return Fixed(weight, bias, self._operators.matmul) if self._deterministic else Dense(weight, bias)

    @property
    def bytes(self) -> int:
        """Bytes of all weights as they are held."""
        layers = sum(layer.qkv.bytes + layer.o.bytes + layer.gate_up.bytes + layer.down.bytes for layer in self.layers)
        return layers + self.embed.nbytes + (0 if self.config.tie_embeddings else self.head.bytes)

    @property
    def workspace_bytes(self) -> int:
        """Bytes that kernels pass partial sums in."""
        return self._space.bytes + self._products.tensor.nbytes

    def forward(self, shape: Shape) -> Tensor:
        """Starts a step; its logits [samples, vocab] are those of the rows to sample, in plan order."""
        config, run, inputs, n = self.config, self._operators, self._inputs, shape.tokens
        eps = config.norm_eps
        hidden, normed, branch = self.hidden[:n], self.normed[:n], self.branch[:n]
        qkv, attention = self.qkv[:n], self.attention[:n]
        gate_up, gated = self.gate_up[:n], self.gated[:n]
        position, line = inputs.token_pos[:n], inputs.token_line[:n]
        tokens = inputs.counts[TOKENS : TOKENS + 1]

        torch.index_select(self.embed, 0, inputs.token_id[:n], out=hidden)
        if shape.tiles:
            tiles, count = self._tiles(shape)
            ids = inputs.token_id[:n]
            run.lora_embed(hidden, ids, self._pages.arena, self._table, tiles, count, 0, EMBEDDING[0])
        if config.embed_scale != 1.0:
            hidden.mul_(config.embed_scale)
        for index, layer in enumerate(self.layers):
            if index == 0:
                run.rms_norm(normed, hidden, layer.input_norm, eps)
            else:
                run.add_rms_norm(normed, hidden, branch, layer.input_norm, eps)
            layer.qkv(qkv, normed)
            self._lora(qkv, normed, shape, index, Q_K_V, (0, self.q_width, self.q_width + self.kv_width))
            run.rope_write(qkv, layer.cos, layer.sin, position, line, tokens, self._pages, index, layer.head_norms)
            self._attend(attention, qkv, shape, index, layer.window)
            layer.o(branch, attention)
            self._lora(branch, attention, shape, index, ATTENTION_OUT, (0,))
            self._collective.reduce(branch)
            if layer.attention_out_norm is not None:
                run.rms_norm(branch, branch, layer.attention_out_norm, eps)
            run.add_rms_norm(normed, hidden, branch, layer.post_norm, eps)
            layer.gate_up(gate_up, normed)
            self._lora(gate_up, normed, shape, index, GATE_UP, (0, config.intermediate))
            run.gate_mul(gated, gate_up, config.activation)
            layer.down(branch, gated)
            self._lora(branch, gated, shape, index, DOWN, (0,))
            self._collective.reduce(branch)
            if layer.mlp_out_norm is not None:
                run.rms_norm(branch, branch, layer.mlp_out_norm, eps)
        return self.logits_of(shape)

    def logits_of(self, shape: Shape) -> Tensor:
        """The logits [samples, vocab] of the tokens that the buffers name, of the step that was computed last."""
        config, inputs, samples = self.config, self._inputs, shape.samples
        last, branch, logits = self.last[:samples], self.last_branch[:samples], self.logits[:samples]
        places = inputs.sample_token[:samples]
        torch.index_select(self.hidden, 0, places, out=last)
        torch.index_select(self.branch, 0, places, out=branch)
        self._operators.add_rms_norm(last, branch, last, self.norm, config.norm_eps)
        own = self._own_logits[:samples]
        self.head(own, last)
        if shape.sample_tiles:
            tiles = inputs.sample_tiles[: shape.sample_tiles]
            count = inputs.counts[SAMPLE_TILES : SAMPLE_TILES + 1]
            self._add(own, last, tiles, count, config.layers - 1, OUTPUT, (0,))
        self._collective.gather(logits, own)
        return logits

    def _tiles(self, shape: Shape) -> tuple[Tensor, Tensor]:
        return self._inputs.tiles[: shape.tiles], self._inputs.counts[TILES : TILES + 1]

    def _lora(self, y: Tensor, x: Tensor, shape: Shape, layer: int, modules: Modules, columns: tuple[int, ...]) -> None:
        """Adds the tokens' adapters to y [n, width], if the step has any."""
        if shape.tiles:
            self._add(y, x, *self._tiles(shape), layer, modules, columns)

    def _add(
        self,
        y: Tensor,
        x: Tensor,
        tiles: Tensor,
        count: Tensor,
        layer: int,
        modules: Modules,
        columns: tuple[int, ...],
    ) -> None:
        widths = tuple(self._widths[module] for module in modules)
        space = self._space.lora(x.shape[0], x.shape[1], len(modules))
        table, arena = self._table, self._pages.arena
        self._operators.lora(y, x, arena, table, tiles, count, layer, modules, columns, widths, space)

    def _attend(self, out: Tensor, qkv: Tensor, shape: Shape, layer: int, window: int | None) -> None:
        """Attention of the step's tokens over their rows' pages."""
        inputs, scale = self._inputs, self.config.attention_scale
        rows = inputs.row_line[: shape.rows], inputs.row_start[: shape.rows], inputs.row_offset[: shape.rows + 1]
        if shape.queries:
            queries, count = inputs.queries[: shape.queries], inputs.counts[QUERIES : QUERIES + 1]
            self._operators.attention(out, qkv, self._pages, layer, queries, count, *rows, scale, window)
        else:
            count = inputs.counts[ROWS : ROWS + 1]
            splits, space = self._space.decode(shape.rows)
            self._operators.attention_decode(out, qkv, self._pages, layer, count, *rows, scale, window, splits, space)
