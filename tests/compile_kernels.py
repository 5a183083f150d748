"""Compiles every Triton kernel for NVIDIA GPUs, down to machine code, on a machine that has none.

python tests/compile_kernels.py [OP …] [--capability 80 90 100]

The interpreter takes what a compiler refuses (a variable that changes its type, a shape that isn't a power of two).
Each module of `tests/compile_cases` starts an operator's kernels as a worker would; these are compiled instead.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # 3.9 wants to know
VERSION = os.environ.get("LORAD_TRITON", "3.9.0")
CASES = Path(__file__).parent / "compile_cases"
sys.path.insert(0, str(CASES.parent.parent / ".tools" / f"triton-{VERSION}"))

import torch  # noqa: E402
import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from lorad.kernels.launch import launching  # noqa: E402

POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}
OPTIONS = ("num_warps", "num_stages", "num_ctas")
WORDS = 1 << 31
ALIGNMENT = 16


class Compiler:
    """A launcher that compiles what it's given and starts nothing."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)
        self.done: dict[str, int] = {}
        """Variants by kernel."""
        self.shared_max = 0
        """Bytes of shared memory of the hungriest."""

    def __call__(
        self, kernel: Any, grid: tuple[int, ...] | None, args: tuple[Any, ...], meta: Mapping[str, Any]
    ) -> None:
        assert grid is not None, "a definition can't be compiled"
        named = dict(zip(kernel.arg_names, args, strict=False)) | dict(meta)
        options = {name: named.pop(name) for name in OPTIONS if name in named}
        constexprs = {p.name: named[p.name] for p in kernel.params if p.is_constexpr and p.name in named}
        constexprs |= {name: None for name, value in named.items() if value is None}
        constexprs |= {p.name: 1 for p in kernel.params if not p.do_not_specialize and is_one(named.get(p.name))}
        signature = {
            p.name: "constexpr" if p.name in constexprs or p.is_constexpr else kind_of(named[p.name])
            for p in kernel.params
        }
        attrs = {
            (p.num,): [["tt.divisibility", ALIGNMENT]]
            for p in kernel.params
            if signature[p.name] != "constexpr" and not p.do_not_specialize and aligned(named[p.name])
        }
        source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attrs)
        made = triton.compile(source, target=self.target, options=options)
        self.done[kernel.fn.__name__] = self.done.get(kernel.fn.__name__, 0) + 1
        self.shared_max = max(self.shared_max, made.metadata.shared)


def kind_of(value: Any) -> str:
    """Triton's name of an argument's type."""
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -WORDS <= value < WORDS else "i64"
    assert isinstance(value, float), f"an argument of type {type(value)}"
    return "fp32"


def is_one(value: Any) -> bool:
    """Whether a worker's compiler would take it as a constant."""
    return type(value) is int and value == 1


def aligned(value: Any) -> bool:
    """Whether a worker's compiler would know that it's a multiple of `ALIGNMENT`: what makes wide loads of a kernel,
    and those ahead of time into shared memory."""
    if isinstance(value, torch.Tensor):
        return value.data_ptr() % ALIGNMENT == 0
    return isinstance(value, int) and not isinstance(value, bool) and value % ALIGNMENT == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = sorted(path.stem for path in CASES.glob("[a-z]*.py"))
    parser.add_argument("ops", nargs="*", default=names, metavar="OP", help=f"some of {', '.join(names)}")
    parser.add_argument("--capability", type=int, nargs="+", default=[80, 90, 100])
    asked = parser.parse_args()
    sys.path.insert(0, str(CASES))
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        for capability in asked.capability:
            compiler = Compiler(capability)
            with launching(compiler):
                for op in asked.ops:
                    importlib.import_module(op).cases()
            variants = ", ".join(f"{name} {count}" for name, count in sorted(compiler.done.items()))
            print(f"Triton {triton.__version__}, sm_{capability}: {variants}; {compiler.shared_max} B shared at most")  # noqa: T201


if __name__ == "__main__":
    main()
