"""Stub of the compiled module."""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal, TypeAlias

from numpy import float32, int32, uint8, uint16, uint32, uint64
from numpy.typing import NDArray

__version__: str

# --- core: rust/lorad-py/src/core.rs ---

SAMPLE_FAILED: int
REFUSAL_CODES: list[str]

class Refused(ValueError):
    code: str
    limit: int | None
    value: int | None
    field: str | None  # of a limit that a core can't have

# (kind, request or adapter, value):
#   ("admitted", request, line), ("token", request, token id), ("preempted", request, 0), ("finished", request, reason),
#   ("adapter_loading", adapter, slot), ("adapter_hot", adapter, slot), ("adapter_evicted", adapter, 0),
#   ("adapter_failed", adapter, 0), ("adapter_gone", adapter, 0), ("adapter_wanted", adapter, 0),
#   ("adapter_dropped", adapter, 0)
# reason: "stop", "length", "aborted", "failed_page_in", "failed_row", "failed_plan", "failed_fetch", "failed_deadline"
Event: TypeAlias = tuple[str, int, int | str]

class Core:
    def __init__(
        self,
        *,
        pages: int = 4096,
        pages_reserved: int = 0,
        page_tokens: int = 16,
        rows_max: int = 64,
        tokens_max: int = 512,
        prefill_chunk_max: int = 256,
        slots_max: int = 64,
        adapters_step_max: int = 64,
        page_ins_max: int = 4,
        adapters_max: int = 16384,
        waiting_max: int = 16384,
        sequence_tokens_max: int = 4096,
        stop_tokens_max: int = 64,
        vocab: int = ...,
        tenants_max: int = 16384,
        urgent_after_us: int = 10_000_000,
        preempt_after_tokens: int = 256,
        preempt_after_us: int = 2_000_000,
        quantum_us: int = 20_000_000,
        rows_reserved: int = 0,
        wait_us_max: int = 0,
        pinned_pages_max: int = 0,
        half_life_us: int = 60_000_000,
        prefix_cache: int = 1,
        share_base_prefix: int = 0,
        order: Literal["fair", "arrival", "affinity"] = "fair",
        eviction: Literal["cost", "lru"] = "cost",
        adapter_pages: int = ...,  # a fixed split instead of one pool
        slots: tuple[int, int] = ...,  # (count, pages of each): preallocated, padded buffers instead of one pool
        costs: dict[str, int] = ...,  # parts of the cost model, by name
    ) -> None: ...
    # A core that writes its inputs, for take_trace; limits that aren't given are those of `like`.
    @staticmethod
    def recorded(like: Replay | None = None, bytes_max: int | None = None, **limits: Any) -> Core: ...
    @property
    def config(self) -> dict[str, int]: ...
    @property
    def in_flight(self) -> int | None: ...
    def plan_layout(self) -> dict[str, tuple[int, int]]: ...
    def plan_length(self) -> int: ...
    def plan_text(self, plan: NDArray[int32]) -> str: ...
    def register(
        self, tag: int, pages: int, layers: int, *, tenant: int = 0, weight: int = 100, remote: bool = False
    ) -> int: ...
    def set_tenant(
        self,
        tenant: int,
        *,
        weight: int = 100,
        pages_max: int = ...,
        adapters_max: int = ...,
        running_max: int = ...,
        waiting_max: int = ...,
    ) -> None: ...
    def pin(self, now: int, adapter: int, pinned: bool = True) -> None: ...
    def prewarm(self, now: int, adapter: int) -> None: ...
    def unregister(self, now: int, adapter: int) -> None: ...
    def add(
        self,
        now: int,
        id: int,
        adapter: int | None,
        prompt: NDArray[uint32] | Sequence[int],
        max_tokens: int,
        stop_tokens: NDArray[uint32] | Sequence[int] | None = None,
        *,
        tenant: int = 0,
        priority: Literal["low", "normal", "high"] | None = None,
        deadline: int | None = None,
        after: int | None = None,
        fresh: bool = False,
    ) -> None: ...
    def abort(self, now: int, id: int) -> None: ...
    def step(self, now: int, plan: NDArray[int32]) -> int | None: ...
    def commit(self, now: int, n: int, tokens: NDArray[int32] | Sequence[int]) -> None: ...
    def commit_failed(self, now: int, n: int) -> None: ...
    def page_in_done(self, now: int, adapter: int) -> None: ...
    def page_in_failed(self, now: int, adapter: int) -> None: ...
    def page_in_dropped(self, now: int, adapter: int) -> None: ...
    def page_in_reached(self, now: int, adapter: int, layers: int) -> None: ...
    def arrived(self, now: int, adapter: int) -> None: ...
    def fetch_failed(self, now: int, adapter: int) -> None: ...
    def drain_events(self) -> list[Event]: ...
    # The last events as text, a line each with its time and plan, drained ones too.
    def recent(self) -> str: ...
    # The lines recorded since the last call. Token ids are in them.
    def take_trace(self) -> str: ...
    def remark(self, text: str) -> None: ...
    @property
    def recording(self) -> str: ...  # "off", "open", "full" (the limit was reached) or "broken"
    def has_work(self) -> bool: ...
    def wishes(self) -> int: ...  # adapters that were pinned or prewarmed and wait for room that nobody uses
    def check(self) -> str | None: ...
    def dump(self) -> str: ...
    # request, tenant, adapter, tag, tier, arrived, admitted, first_token, finished, waited_for, passed_by, preemptions,
    # cached_tokens; None if nothing is known
    def explain(self, request: int) -> dict[str, Any] | None: ...
    # running, waiting, pages, pages_free, pages_sequences, pages_adapters, pages_cached, pages_reserved, slots_free,
    # adapters_loading, adapters_active; the counters plans, added, refused, admissions, preemptions, page_ins,
    # page_ins_failed, page_in_pages, evictions, evicted_pages, prefix_evictions, prefix_tokens, prefix_pages, urgent,
    # tokens_computed, tokens_sampled, finished, aborted, failed;
    # adapters: id -> (state, running, waiting, pages), state one of remote, cold, loading, hot, failed, draining
    def stats(self) -> dict[str, Any]: ...

def run_script(text: str) -> str: ...

# --- the cost model: rust/lorad-py/src/costs.rs ---

# Its parts by name, as a core has them that is told no others.
def default_costs() -> dict[str, int]: ...

# ns of a step with these rows, each (start, count, sampled, slot or -1, pages of its adapter), with which page-ins of
# so many pages begin; parts that aren't given are the default's.
def plan_ns(costs: dict[str, int], rows: Sequence[tuple[int, int, bool, int, int]], page_in_pages: int = 0) -> int: ...
def page_in_ns(costs: dict[str, int], pages: int) -> int: ...

# --- traces: rust/lorad-py/src/trace.rs and snapshot.rs ---

class Unreadable(ValueError):
    """A line of a trace or dump that can't be taken."""

    code: str
    line: int

class Replay:
    def __init__(self, text: str) -> None: ...
    # line, call, arguments (by name), outcome, value, refusal, diverged, events: lorad.debug.Moment
    def step(self) -> dict[str, Any] | None: ...
    @property
    def line(self) -> int: ...
    @property
    def cut(self) -> bool: ...  # the log ended because it reached its limit
    def plan_text(self) -> str | None: ...
    def read_plan(self, plan: NDArray[int32]) -> None: ...
    def recent(self) -> str: ...
    def dump(self) -> str: ...
    def check(self) -> str | None: ...

def redact_trace(text: str, key: bytes) -> str:
    """Other token ids, the same plans; `key` has 16 bytes."""

def snapshot(text: str) -> dict[str, Any]:
    """A dump as plain data: lorad.debug.Snapshot."""

# --- simulation: rust/lorad-py/src/simulation.rs ---

SCENARIOS: dict[str, str]  # texts of the scenarios that ship with lorad, by name
COUNTERS: list[str]  # what can be watched

class ScenarioError(ValueError):
    """A scenario or trace that can't be run: nothing was."""

    code: str
    line: int | None
    field: str | None
    limit: int | str | None  # a text where the values aren't numbers
    value: int | str | None

class PromiseBroken(Exception):
    """An invariant, a wait bound or the caller's watch."""

    kind: str  # "check", "plan", "event", "call", "stuck", "left", "watch" or "panic"
    step: int
    at_us: int
    trace: str  # the fewest inputs that break the same; runs on the same scenario
    script: str  # the calls that they make, for run_script
    runs: int  # that it took to shrink it

def scenario(text: str) -> dict[str, Any]:
    """values (all keys as text), adapter_pages, page_bytes, gap_us: lorad.simulate.scenario.Facts."""

def random_scenario(seed: int, steps: int) -> str:
    """Text of a world with tiny pools and all faults at once, about so many steps long, checked after each."""

def simulate(
    text: str,
    *,
    trace: str | None = None,  # instead of the scenario's own
    watch: tuple[str, int] | None = None,  # ends the run as broken once this counter is that large
    on_progress: Callable[[str, int, int], None] | None = None,  # (stage, done, total); what it raises ends the run
) -> dict[str, Any]:
    """lorad.simulate.Report. Frees the interpreter lock; signals are heard about every 50 ms."""

def fleet_requests(text: str) -> list[tuple[int, int]]:
    """When each request of a fleet's scenario comes, in µs from its beginning, and for which adapter."""

def simulate_fleet(text: str, *, cores: bool = False) -> dict[str, Any]:
    """lorad.simulate.fleet.FleetReport of a fleet's scenario, `key=value` pairs. Frees the interpreter lock."""

# --- router: rust/lorad-py/src/router.rs ---

FLEET_POLICIES: list[str]

class FleetRefused(ValueError):
    code: str

# µs by term: queue, prefix, load, risk, displaced
Cost: TypeAlias = dict[str, int]
# replica, whether the adapter lives there, cost
Candidate: TypeAlias = tuple[int, bool, Cost]

class Fleet:
    """lorad_fleet::Fleet. Replicas and adapters are numbers from 0 in the order in which they were added; times are µs
    on the caller's clock."""

    def __init__(
        self,
        policy: str,
        *,
        silent_us: int = 3_000_000,
        half_life_us: int = 300_000_000,
        retry_us: int = 1_000_000,
        away_loads: int = 1,
        block_tokens: int = 64,
        blocks_max: int = 65536,
    ) -> None: ...
    def add_replica(self, key: int, weight: int) -> int: ...
    def remove_replica(self, replica: int, now: int) -> None: ...
    def publish(
        self,
        replica: int,
        now: int,
        *,
        number: int,
        base: int | None,
        seen: int,
        queue_us: int,
        token_ns: int,
        adapter_kib_max: int,
        draining: bool,
        tiers: Sequence[tuple[int, str]],
        warm: tuple[int, int] | None = None,  # µs for each load and ns for each KiB; None: not measured, the default
        cold: tuple[int, int] | None = None,
        absent: tuple[int, int] | None = None,
    ) -> None: ...
    def fail(self, replica: int, now: int) -> None: ...
    def is_live(self, replica: int, now: int) -> bool: ...
    def add_adapter(self, key: int, kib: int) -> int: ...
    def remove_adapter(self, adapter: int) -> None: ...
    def homes(self, adapter: int) -> list[int]: ...
    def heat(self, adapter: int, now: int) -> float: ...
    def route(self, now: int, *, adapter: int | None, tokens: int, blocks: Sequence[int]) -> dict[str, Any]:
        """number, replica, cost: Cost, runner_up: Candidate | None. Counts the request as sent."""

    def candidates(self, now: int, *, adapter: int | None, tokens: int, blocks: Sequence[int]) -> list[Candidate]: ...
    def rebalance(self, now: int, moves_max: int) -> list[tuple[int, int | None, int | None, str]]:
        """(adapter, the home that it loses, the one that it gets, why) of each move."""

# --- end of core ---

# --- cpu: rust/lorad-py/src/cpu/ ---
#
# Activations are f32 and C-contiguous; 16-bit floats travel as uint16 bits; nothing is copied. n: tokens of the step.
# A wrong shape or an index out of range raises ValueError before anything is written.

QUANT_KINDS: frozenset[str]  # Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K
TILE_ROWS: int
GATED_ROWS: int

# (layers, kv_heads, page_tokens, head_dim, element): how KV lies in a page; element: "f32", "f16" or "bf16".
Geometry: TypeAlias = tuple[int, int, int, int, str]

class AdapterLayout:
    def __init__(
        self,
        page_bytes: int,
        element: str,
        # (layer, module, in_features, out_features, rank, scale)
        modules: Sequence[tuple[int, int, int, int, int, float]],
        *,
        # (layer, module) of those that have such a vector; rank 0 is for modules with nothing else
        gains: AbstractSet[tuple[int, int]] = ...,
        biases: AbstractSet[tuple[int, int]] = ...,
    ) -> None: ...
    @property
    def page_bytes(self) -> int: ...
    @property
    def element(self) -> str: ...
    @property
    def pages(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def layer_pages(self) -> list[int]: ...  # leading pages that hold layers 0..=l
    def chunks(self, layer: int, module: int) -> list[tuple[int, int, str, int, int, int, int]]:
        """(page, byte offset, part, rank_begin, rows, begin, len) of one module; empty if it isn't adapted.

        The part is "a", "b", "gain" or "bias"."""
    def pack(
        self,
        image: NDArray[uint8],  # [pages, page_bytes]
        layer: int,
        module: int,
        a: NDArray[uint8],  # bytes of [rank, in], of `element`
        b: NDArray[uint8],  # bytes of PEFT's [out, rank]
        gain: NDArray[float32] | None = ...,  # [out], of those that have one
        bias: NDArray[float32] | None = ...,  # [out], likewise
    ) -> None: ...

class AdapterTable:
    def __init__(self, slots: int, page_bytes: int, layers: int, modules: int) -> None: ...
    def set(self, slot: int, tag: int, layout: AdapterLayout, pages: NDArray[int32]) -> None: ...
    def clear(self, slot: int) -> None: ...
    def tag(self, slot: int) -> int: ...  # 0: empty
    @property
    def bytes(self) -> int: ...

class StepAdapters:
    """A step's adapters, which operators add."""

    def __init__(
        self,
        arena: NDArray[uint8],  # [pages, page_bytes]
        table: AdapterTable,
        group_slot: NDArray[int32],  # [groups]
        group_tag: NDArray[int32],  # [groups]
        group_begin: NDArray[int32],  # [groups] token ranges, disjoint
        group_end: NDArray[int32],  # [groups]
        *,
        exact: bool = False,
    ) -> None:
        """`exact`: as few tokens are computed, however many there are."""

Delta: TypeAlias = tuple[StepAdapters, int, Sequence[int], Sequence[int]]
"""What adapters add to a product: a layer, its modules with one input, the columns of y where their outputs begin."""

def lora(
    y: NDArray[float32],  # [n, width]
    x: NDArray[float32],  # [n, in]
    delta: Delta,
) -> list[int]:
    """Adds each group's adapter to y. Returns the groups whose tag isn't their slot's; their rows of y are NaN."""

def lora_embed(
    y: NDArray[float32],  # [n, hidden]
    ids: NDArray[int32],  # [n]
    vocab: int,
    delta: Delta,  # of one module, whose A is [rank, vocab]
) -> list[int]:
    """As `lora` with one-hot rows for x: adds each group's adapter to the embedding's rows."""

def rope_write(
    qkv: NDArray[float32],  # [n, (heads + 2 kv_heads) head_dim]; q and k are normed and rotated in place
    cos: NDArray[float32],  # [positions, head_dim / 2]
    sin: NDArray[float32],  # [positions, head_dim / 2]
    token_pos: NDArray[int32],  # [n]
    token_line: NDArray[int32],  # [n]
    page_table: NDArray[int32],  # [lines, columns]
    arena: NDArray[uint8],  # [pages, page_bytes]; k and v are written
    geometry: Geometry,
    layer: int,
    norms: tuple[NDArray[float32], NDArray[float32], float] | None = None,  # RMS norms of each head of q and k before
    # it's rotated: weights [head_dim] each, and eps
) -> None: ...
def paged_attention(
    out: NDArray[float32],  # [n, heads head_dim]
    q: NDArray[float32],  # [n, width]: the fused qkv buffer, or q alone; heads in the first columns
    arena: NDArray[uint8],  # [pages, page_bytes]
    geometry: Geometry,
    layer: int,
    page_table: NDArray[int32],  # [lines, columns]
    row_line: NDArray[int32],  # [rows]
    row_start: NDArray[int32],  # [rows] tokens in the pages before this step
    row_offset: NDArray[int32],  # [rows + 1] into the tokens
    scale: float,
    window: int | None = None,  # a query sees its own key and the window - 1 before it; None: all before it
) -> None: ...
def rms_norm(out: NDArray[float32], x: NDArray[float32], weight: NDArray[float32], eps: float) -> None:
    """[n, hidden] each, weight [hidden]; out may be x itself."""

def add_rms_norm(
    out: NDArray[float32],  # [n, hidden]
    residual: NDArray[float32],  # [n, hidden]; x is added to it first
    x: NDArray[float32],  # [n, hidden]
    weight: NDArray[float32],  # [hidden]
    eps: float,
) -> None: ...
def gate_mul(out: NDArray[float32], gate_up: NDArray[float32], gate: str) -> None:
    """out [n, width] = gate(gate_up[:, :width]) · gate_up[:, width:]; `gate`: silu, or gelu_tanh, GELU's tanh form."""

def embed(
    out: NDArray[float32],  # [n, hidden]
    table: NDArray[float32] | NDArray[uint16],  # [vocab, hidden]
    ids: NDArray[int32],  # [n]
    element: str = "f32",
) -> None: ...
def gather_rows(out: NDArray[float32], x: NDArray[float32], index: NDArray[int32]) -> None:
    """out[i] = x[index[i]]."""

class DenseMatrix:
    def __init__(self, element_name: str, data: NDArray[uint8], rows: int, cols: int) -> None:
        """`data`: the bytes of a [rows, cols] tensor of f32, f16 or bf16; repacked here, not kept."""
    @property
    def bytes(self) -> int: ...
    def matmul(self, y: NDArray[float32], x: NDArray[float32]) -> None:
        """y [n, rows] = x [n, cols] @ W.T; a row of y doesn't depend on the others."""
    def widen_rows(self, out: NDArray[float32], ids: NDArray[int32]) -> None: ...  # [n, cols]

class QuantMatrix:
    def __init__(self, kind: str, data: NDArray[uint8], rows: int, cols: int, *, fine: bool = False) -> None:
        """`data`: GGUF blocks of a [rows, cols] tensor; repacked here, not kept. `fine`: integer products take
        activations in two terms of 8 bits."""
    @property
    def kind(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def matmul(
        self,
        y: NDArray[float32],  # [n, rows]; [n, rows / 2] with a gate
        x: NDArray[float32],  # [n, cols]
        *,
        tiles: bool = False,
        delta: Delta | None = None,
        gate: str | None = None,
    ) -> list[int]:
        """y = x @ W.T, and what adapters add; `gate` (silu, gelu_tanh): gate(first half) · second half of that.

        x is rounded to 8 bits in blocks of 32. `tiles`: weights and x rounded to bf16, sums in f32; only where
        `cpu_features()["level"]` is amx. Returns what `lora` does. A gate needs rows in multiples of GATED_ROWS.
        """

    def dequantize(self, out: NDArray[float32]) -> None: ...  # [rows, cols]
    def dequantize_rows(self, out: NDArray[float32], ids: NDArray[int32]) -> None: ...  # [n, cols]

BEST_MAX: int  # best tokens that can be asked for beside the chosen one

def sample(
    tokens: NDArray[int32],  # [R] out; -1 where the row holds a NaN, or nothing may be chosen
    logprobs: NDArray[float32] | None,  # [R] out, of the unscaled and unchanged log-softmax; None: not computed
    logits: NDArray[float32],  # [R, vocab]
    temperature: NDArray[float32],  # [R]; 0: greedy
    top_k: NDArray[int32],  # [R]; 0 or less: off
    top_p: NDArray[float32],  # [R]; 1 or more: off
    min_p: NDArray[float32],  # [R]; 0: off
    seed: NDArray[uint64],  # [R]
    counter: NDArray[uint32] | NDArray[int32],  # [R] position of the new token
    best_tokens: NDArray[int32] | None = None,  # [R, N] out, N <= BEST_MAX
    best_logprobs: NDArray[float32] | None = None,  # [R, N] out
    # What the rows change of their logits before a token is chosen; log-probabilities are of the unchanged ones.
    # offset [R + 1]: where a row's tokens begin, or empty; token [E]; change [E, 3]: added, then dividing a positive
    # logit or multiplying another, then subtracted; mask_row [R]: each row's mask or -1, or empty; mask [M, vocab / 32
    # rounded up]: bits of the tokens that may be chosen, the lowest first
    edits: tuple[NDArray[int32], NDArray[int32], NDArray[float32], NDArray[int32], NDArray[int32]] | None = None,
) -> None: ...
def set_threads(threads: int) -> None: ...
def threads() -> int: ...
def cpu_features() -> dict[str, bool | str]:
    """What this CPU has, and under "level" the path in use: LORAD_CPU=portable|avx2|avx512|amx, else the best."""

def cpu_levels() -> list[str]:
    """The paths that this CPU has, the best last."""

# --- end of cpu ---
