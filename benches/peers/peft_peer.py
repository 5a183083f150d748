"""transformers + PEFT: one mixed batch through `generate(adapter_names=…)`, called in process.

It has no server, so its figures are without HTTP: a little kinder to it than to the others.
"""

from __future__ import annotations

import json
import select
import subprocess
from pathlib import Path
from typing import Any

from cases import Answer, Burst, Case, prompts_of
from layout import PEFT, TORCH, Layout, adapter_name, timing_env
from machine import prioritise
from serving import BURST_LIMIT_S, Side


class PeftPeer(Side):
    """A worker process (`peft_worker.py`) that takes one JSON line a burst and answers with one."""

    name = "peft"
    dtype = "float32"

    def __init__(self, layout: Layout, threads: int, log: Path) -> None:
        """Nothing is started yet."""
        super().__init__(layout, threads, log)
        self.adapters = 0

    def start(self, adapters: int, streams_max: int) -> None:
        """Starts the worker and waits until base and adapters are loaded."""
        self.adapters = adapters
        worker = Path(__file__).with_name("peft_worker.py")
        words = [str(self.layout.peft_python), str(worker), str(self.layout.base_hf), self.dtype]
        words += [str(self.threads), *(str(self.layout.adapter(k)) for k in range(adapters))]
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                words,
                env=timing_env() | {"HF_HUB_OFFLINE": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                start_new_session=True,
            )
        prioritise(self.process.pid, self.nice)
        try:
            self._answer(self.start_limit_s)
        except BaseException:
            self.stop()
            raise

    def _answer(self, limit_s: float) -> dict[str, Any]:
        assert self.process is not None and self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], limit_s)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            raise RuntimeError(f"{self.name} gave no answer; {self.log} ends:\n{self.tail()}")
        return dict(json.loads(line))

    def burst(self, case: Case, variant: int) -> Burst:
        """One padded batch; all streams get their first token at the same moment."""
        assert self.process is not None and self.process.stdin is not None
        names = [adapter_name(k) for s in range(case.streams) if (k := case.adapter_of(s)) is not None]
        job = {"prompts": prompts_of(case, variant), "adapters": names, "new_tokens": case.new_tokens}
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()
        result = self._answer(BURST_LIMIT_S)
        answers = [
            Answer(text=text, tokens=tokens, first_s=result["first_s"])
            for text, tokens in zip(result["texts"], result["tokens"], strict=True)
        ]
        return Burst(result["wall_s"], answers, case.tokens * case.streams)

    def settings(self) -> str:
        """Versions and number type."""
        return f"{PEFT[0]}, {PEFT[1]}, {TORCH}, {self.dtype}, {self.threads} threads, in process"
