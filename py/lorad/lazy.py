"""torch, imported when something of it is first used.

Importing it is most of a start's time, and a quantised base that no adapter has joined needs nothing of it.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch  # noqa: PLC0414 -- what mypy takes for a name to be imported from here
else:

    class _Torch:
        """Stands for the module."""

        threads: int | None = None
        module: Any = None

        def __getattr__(self, name: str) -> Any:
            if self.module is None:  # a load asks some 2,500 times
                new = "torch" not in sys.modules
                module = importlib.import_module("torch")  # waits for another thread's import to be complete
                if new and self.threads is not None:
                    module.set_num_threads(self.threads)
                self.module = module
            return getattr(self.module, name)

    torch = _Torch()


def set_torch_threads(threads: int) -> None:
    """How many threads torch computes with, once it's there."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    else:
        vars(torch)["threads"] = threads
