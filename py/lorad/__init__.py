"""lorad: many LoRA adapters on one base model, in one batch.

`Engine` steps the engine by hand; `lorad serve` is the server. Names load when they're first used, so `import lorad` is
quick and needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lorad import errors
from lorad._core import __version__

if TYPE_CHECKING:
    from lorad.config import EngineConfig
    from lorad.engine.engine import Engine
    from lorad.engine.messages import Sampling
    from lorad.engine.request import Request

__all__ = ["Engine", "EngineConfig", "Request", "Sampling", "__version__", "errors"]

_LAZY = {
    "Engine": "lorad.engine.engine",
    "EngineConfig": "lorad.config",
    "Request": "lorad.engine.request",
    "Sampling": "lorad.engine.messages",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'lorad' has no attribute {name!r}")
