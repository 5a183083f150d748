"""lorad itself, through its command and its OpenAI server."""

from __future__ import annotations

import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from cases import Answer
from layout import adapter_name
from serving import HOST, HttpSide, read_openai


class Lorad(HttpSide):
    """`lorad serve` on the same GGUF file and the same adapter folders."""

    name = "lorad"

    def command(self, adapters: int, streams_max: int) -> list[str]:
        """The command beside this Python, else the one on the path; every adapter registered by name."""
        beside = Path(sys.executable).with_name("lorad")
        found = str(beside) if beside.exists() else shutil.which("lorad")
        if found is None:
            raise RuntimeError("no `lorad` command: install the project into this Python first")
        words = [found, "serve", str(self.layout.gguf), "--host", HOST, "--port", str(self.port)]
        words += ["--served-model-name", "smollm2", "--no-enable-prefix-caching"]
        if adapters:
            words.append("--lora-modules")
            words += [f"{adapter_name(k)}={self.layout.adapter(k)}" for k in range(adapters)]
        return words

    def body(self, prompt: list[int], adapter: int | None, new_tokens: int) -> dict[str, object]:
        """Token ids in, a stream with its usage out."""
        return {
            "model": "smollm2" if adapter is None else adapter_name(adapter),
            "prompt": prompt,
            "max_tokens": new_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def read(self, event: dict[str, Any], answer: Answer) -> bool:
        """OpenAI's form."""
        return read_openai(event, answer)

    def settings(self) -> str:
        """Installed version."""
        try:
            version = metadata.version("lorad")
        except metadata.PackageNotFoundError:
            version = "not installed as a package"
        return f"lorad {version}, defaults, prefix cache off"
