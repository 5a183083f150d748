"""llama.cpp: `llama-server` on the Q4_1 file as it is, an adapter per request through its `lora` field."""

from __future__ import annotations

from typing import Any

from cases import Answer
from layout import LLAMA_CPP
from machine import has_amx
from prompts import NEW_TOKENS, PREFILL_TOKENS, PROMPT_TOKENS
from serving import HOST, HttpSide


class LlamaCpp(HttpSide):
    """As many slots as streams; the server batches only slots whose adapters are the same."""

    name = "llama.cpp"
    path = "/completion"
    slots: int | None = None
    extra: tuple[str, ...] = ()

    def command(self, adapters: int, streams_max: int) -> list[str]:
        """`llama-server` with all adapters loaded and none applied.

        Its kernels for tiles (AMX), a way of repacking weights, end with an illegal instruction (build 11434,
        gcc 12). Q4_1 has no other repacked form, so nothing else is lost without.
        """
        slots = self.slots or streams_max
        room = PREFILL_TOKENS + NEW_TOKENS if streams_max == 1 else PROMPT_TOKENS + 2 * NEW_TOKENS
        words = [str(self.layout.llama_tool("llama-server")), "-m", str(self.layout.gguf)]
        words += ["--host", HOST, "--port", str(self.port), "-t", str(self.threads), "-tb", str(self.threads)]
        words += ["-np", str(slots), "-c", str(room * slots), "--cache-ram", "0", "--no-webui", *self.extra]
        if has_amx():
            words.append("--no-repack")
        if adapters:
            files = ",".join(str(self.layout.adapter_gguf(k)) for k in range(adapters))
            words += ["--lora", files, "--lora-init-without-apply"]
        return words

    def body(self, prompt: list[int], adapter: int | None, new_tokens: int) -> dict[str, object]:
        """Its native completion call: token ids in, greedy, no prompt cache."""
        fields: dict[str, object] = {
            "prompt": prompt,
            "n_predict": new_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            "stream": True,
        }
        if adapter is not None:
            fields["lora"] = [{"id": adapter, "scale": 1.0}]
        return fields

    def read(self, event: dict[str, Any], answer: Answer) -> bool:
        """The last event says how many tokens there were."""
        answer.text += event.get("content", "")
        if event.get("stop"):
            answer.tokens = int(event["tokens_predicted"])
            return False
        return True

    def settings(self) -> str:
        """Version and what was chosen."""
        slots = self.slots or "as many as streams"
        return f"{LLAMA_CPP} built natively, Q4_1, slots: {slots}, {self.threads} threads"
