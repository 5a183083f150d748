"""Stub of the compiled module."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypedDict

from numpy import int32, uint32
from numpy.typing import NDArray

__version__: str

# --- core: rust/lorad-py/src/core.rs ---

SAMPLE_FAILED: int

class Refused(ValueError):
    code: str
    limit: int | None
    value: int | None

class AdapterStats(TypedDict):
    tag: int
    state: Literal["cold", "loading", "hot", "failed", "draining"]
    slot: int | None
    pages: int
    running: int
    waiting: int

# (kind, request or adapter, value):
#   ("admitted", request, line), ("token", request, token id), ("preempted", request, 0), ("finished", request, reason),
#   ("adapter_loading", adapter, slot), ("adapter_hot", adapter, slot), ("adapter_evicted", adapter, 0),
#   ("adapter_failed", adapter, 0), ("adapter_gone", adapter, 0)
# reason: "stop", "length", "aborted", "failed_page_in", "failed_row", "failed_plan"
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
        pass_overs_max: int = 64,
    ) -> None: ...
    @property
    def config(self) -> dict[str, int]: ...
    @property
    def in_flight(self) -> int | None: ...
    def plan_layout(self) -> dict[str, tuple[int, int]]: ...
    def plan_length(self) -> int: ...
    def plan_text(self, plan: NDArray[int32]) -> str: ...
    def register(self, tag: int, pages: int, layers: int) -> int: ...
    def unregister(self, now: int, adapter: int) -> None: ...
    def add(
        self,
        now: int,
        id: int,
        adapter: int | None,
        prompt: NDArray[uint32] | Sequence[int],
        max_tokens: int,
        stop_tokens: NDArray[uint32] | Sequence[int] | None = None,
        tenant: int = 0,
    ) -> None: ...
    def abort(self, now: int, id: int) -> None: ...
    def step(self, now: int, plan: NDArray[int32]) -> int | None: ...
    def commit(self, now: int, n: int, tokens: NDArray[int32] | Sequence[int]) -> None: ...
    def commit_failed(self, now: int, n: int) -> None: ...
    def page_in_done(self, now: int, adapter: int) -> None: ...
    def page_in_failed(self, now: int, adapter: int) -> None: ...
    def drain_events(self) -> list[Event]: ...
    def has_work(self) -> bool: ...
    def check(self) -> str | None: ...
    def dump(self) -> str: ...
    def stats(self) -> dict[str, Any]: ...

def run_script(text: str) -> str: ...

# --- end of core ---
