"""A command's function, imported when the command runs: `lorad --help` is quick."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable


def later(module: str, function: str) -> Callable[[argparse.Namespace], int]:
    """What calls `function` of `module` with the parsed arguments."""

    def run(arguments: argparse.Namespace) -> int:
        return int(getattr(importlib.import_module(module), function)(arguments))

    return run
