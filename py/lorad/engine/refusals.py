"""The core's refusals as lorad's errors."""

from __future__ import annotations

import math
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
    "pin_slots_full": (Overloaded, None),
    "after_another": (InvalidRequest, "after"),
}
"""Code of the core to the error that a client sees and the field that it is about."""

OPTIONS: dict[str, tuple[str, float]] = {
    "wait_us_max": ("wait_seconds_max", 1e6),
    "urgent_after_us": ("urgent_after_seconds", 1e6),
    "rows_reserved": ("reserved_seqs", 1),
    "pinned_pages_max": ("max_pinned_bytes", 1),
}
"""Limit of the core to the option that it comes from and how many of its units make one of the option's."""


@contextmanager
def refusals() -> Iterator[None]:
    """Turns a refusal of the core into its error."""
    try:
        yield
    except _core.Refused as refused:
        kind, param = KINDS[refused.code]
        message = str(refused)
        if refused.code == "wait_too_long" and refused.limit is not None and refused.value is not None:
            message = (
                f"the wait could become {refused.value / 1e6:.6g} s, at most {refused.limit / 1e6:.6g} s are accepted "
                "(wait_seconds_max)"
            )
        if refused.code == "pins_full":
            message += " (--max-pinned-bytes)"
        raise kind(message, code=refused.code, param=param) from None


@contextmanager
def config_refusals() -> Iterator[None]:
    """Turns a limit that the core can't keep into the refusal of the option that it comes from."""
    try:
        yield
    except _core.Refused as refused:
        if refused.field is None or refused.limit is None or refused.value is None:
            raise
        option, units = OPTIONS.get(refused.field, (refused.field, 1))
        least = refused.code == "config_too_small"
        # so that the limit named is one that is taken
        limit = (math.ceil if least else math.floor)(refused.limit / units * 1000) / 1000
        raise InvalidRequest(
            f"{option}: at {'least' if least else 'most'} {limit:.10g}, got {refused.value / units:.10g}",
            code="option_range",
            param=option,
        ) from None
