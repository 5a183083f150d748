"""What a chat template may spend: it's a program of whoever made the model or the adapter.

Each turn of a loop and each call of a macro looks at the clock, so that one that never ends is refused instead of
keeping a thread; products that would fill the memory, or take for ever by themselves, aren't computed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

RENDER_SECONDS = 5.0
"""Of a thread's own time. The longest conversation takes a tenth of a second."""
BITS_MAX = 4096
"""Of a product or power of whole numbers."""
PRODUCT_MAX = 1 << 24
"""Entries or characters of a list or text that is repeated."""

_thread = threading.local()


@contextmanager
def spending() -> Iterator[None]:
    """The time of this thread begins to run."""
    _thread.until = time.thread_time() + RENDER_SECONDS
    try:
        yield
    finally:
        del _thread.until


class Clock(jinja2.ext.Extension):
    """What compiled loops and macros call. Templates have no name for it."""

    def tick(self) -> str:
        """Raises when the time is over."""
        if time.thread_time() > _thread.until:
            raise jinja2.TemplateError(f"it takes longer than {RENDER_SECONDS:g} s")
        return ""


def watched(tree: jinja2.nodes.Template) -> jinja2.nodes.Template:
    """A parsed template whose loops and macros look at the clock."""
    again: list[jinja2.nodes.For | jinja2.nodes.Macro | jinja2.nodes.CallBlock] = [
        *tree.find_all(jinja2.nodes.For),
        *tree.find_all(jinja2.nodes.Macro),
        *tree.find_all(jinja2.nodes.CallBlock),
    ]
    for node in again:
        look = jinja2.nodes.Call(jinja2.nodes.ExtensionAttribute(Clock.identifier, "tick"), [], [], None, None)
        node.body.insert(0, jinja2.nodes.ExprStmt(look).set_lineno(node.lineno))
    return tree


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox, with small products only."""

    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """One product or power."""
        if _too_large(operator, left, right):
            raise jinja2.TemplateError(f"a result of {operator} is too large")
        return super().call_binop(context, operator, left, right)


def _too_large(operator: str, left: Any, right: Any) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        return bits > BITS_MAX
    for repeated, times in ((left, right), (right, left)):
        if isinstance(repeated, str | bytes | list | tuple) and isinstance(times, int):
            return len(repeated) * times > PRODUCT_MAX
    return False
