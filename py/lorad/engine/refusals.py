"""The core's refusals as lorad's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lorad import _core
from lorad.errors import AdapterRejected, InvalidRequest, LoradError, NotFound, Overloaded, Unavailable

KINDS: dict[str, tuple[type[LoradError], str | None]] = {
    "queue_full": (Overloaded, None),
    "duplicate_request": (InvalidRequest, None),
    "unknown_adapter": (NotFound, "model"),
    "adapter_draining": (NotFound, "model"),
    "empty_prompt": (InvalidRequest, "prompt"),
    "no_tokens_wanted": (InvalidRequest, "max_tokens"),
    "token_out_of_range": (InvalidRequest, "prompt"),
    "sequence_too_long": (InvalidRequest, "prompt"),
    "never_fits": (InvalidRequest, "prompt"),
    "too_many_stop_tokens": (InvalidRequest, "stop_token_ids"),
    "adapters_full": (Unavailable, None),
    "adapter_too_large": (AdapterRejected, None),
    "empty_adapter": (AdapterRejected, None),
    "zero_tag": (AdapterRejected, None),
    "adapter_ids_spent": (Unavailable, None),
    "tenants_full": (Unavailable, None),
    "tenant_queue_full": (Overloaded, None),
    "tenant_adapters_full": (Overloaded, None),
    "tenant_never_fits": (InvalidRequest, "prompt"),
    "wait_too_long": (Overloaded, None),
    "weight_out_of_range": (InvalidRequest, "weight"),
    "deadline_passed": (InvalidRequest, "deadline"),
    "pins_full": (Overloaded, None),
    "after_another": (InvalidRequest, "after"),
}
"""Code of the core to the error that a client sees and the field that it is about."""


@contextmanager
def refusals() -> Iterator[None]:
    """Turns a refusal of the core into its error."""
    try:
        yield
    except _core.Refused as refused:
        kind, param = KINDS[refused.code]
        raise kind(str(refused), code=refused.code, param=param) from None
