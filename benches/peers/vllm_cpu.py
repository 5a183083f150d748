"""vLLM's CPU build: its OpenAI server with float32 or bfloat16 weights, driven over /v1/completions."""

from __future__ import annotations

from typing import Any

from cases import Answer
from layout import VLLM, adapter_name
from prompts import PROMPT_TOKENS
from serving import HOST, HttpSide, read_openai


class VllmCpu(HttpSide):
    """One server for each set of adapters: as many adapter slots as there are adapters, none for the base."""

    name = "vllm-cpu"
    start_limit_s = 420.0
    dtype = "float32"
    executor = "uni"
    eager = False

    def command(self, adapters: int, streams_max: int) -> list[str]:
        """Its server module (this package's `vllm` command fails looking for its own version)."""
        words = [str(self.layout.vllm_python), "-m", "vllm.entrypoints.openai.api_server"]
        words += ["--model", str(self.layout.base_hf)]
        words += ["--served-model-name", "smollm2", "--host", HOST, "--port", str(self.port)]
        words += ["--dtype", self.dtype, "--max-model-len", "2048", "--max-num-seqs", str(streams_max)]
        words += ["--no-enable-prefix-caching", "--distributed-executor-backend", self.executor]
        # All prompts of a burst fit one step, so none waits for another's chunk.
        words += ["--max-num-batched-tokens", str(max(2048, PROMPT_TOKENS * streams_max))]
        if self.eager:
            words.append("--enforce-eager")
        if adapters:
            words += ["--enable-lora", "--max-loras", str(adapters), "--max-lora-rank", "16"]
            words += ["--max-cpu-loras", str(adapters), "--lora-modules"]
            words += [f"{adapter_name(k)}={self.layout.adapter(k)}" for k in range(adapters)]
        return words

    def env(self) -> dict[str, str]:
        """All cores compute: by default vLLM keeps one for a scheduler process that spins."""
        extra = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        if self.executor == "uni":
            extra["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        else:
            extra["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
        return super().env() | extra

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
        """Version and what was chosen."""
        mode = "eager" if self.eager else "compiled"
        return f"{VLLM}, {self.dtype}, {mode}, executor {self.executor}, {self.threads} threads"
