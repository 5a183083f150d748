"""Worker of `peft_peer.py`, run with the Python that has torch, transformers and peft.

    python peft_worker.py BASE_FOLDER DTYPE THREADS [ADAPTER_FOLDER …]

One JSON line on standard input is one batch; one JSON line on standard output answers it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteria, StoppingCriteriaList


class FirstToken(StoppingCriteria):
    """Never stops anything; notes when the first token of the batch is there."""

    def __init__(self) -> None:
        """Nothing seen yet."""
        self.at: float | None = None

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **_: Any) -> torch.BoolTensor:
        """Called by transformers after each token of the batch."""
        if self.at is None:
            self.at = time.perf_counter()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


@torch.inference_mode()
def generate(model: Any, tokenizer: Any, job: dict[str, Any]) -> dict[str, Any]:
    """One batch, greedy, a fixed number of tokens."""
    ids = torch.tensor(job["prompts"])
    first = FirstToken()
    names = {"adapter_names": job["adapters"]} if job["adapters"] else {}
    began = time.perf_counter()
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=job["new_tokens"],
        min_new_tokens=job["new_tokens"],
        do_sample=False,
        stopping_criteria=StoppingCriteriaList([first]),
        **names,
    )
    wall_s = time.perf_counter() - began
    new = out[:, ids.shape[1] :]
    return {
        "wall_s": wall_s,
        "first_s": None if first.at is None else first.at - began,
        "tokens": [len(row) for row in new],
        "texts": tokenizer.batch_decode(new),
    }


def main() -> None:
    """Loads, says so, then answers batches until standard input ends."""
    base, dtype, threads, *adapters = sys.argv[1:]
    torch.set_num_threads(int(threads))
    tokenizer = AutoTokenizer.from_pretrained(base)
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, dtype))
    for folder in adapters:
        name = Path(folder).name
        if isinstance(model, PeftModel):
            model.load_adapter(folder, adapter_name=name)
        else:
            model = PeftModel.from_pretrained(model, folder, adapter_name=name)
    model.eval()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(generate(model, tokenizer, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
