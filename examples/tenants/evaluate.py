"""Score every tenant on every held-out set, and write docs/tenants.md from what is measured.

    python examples/tenants/evaluate.py

Each committed bf16 adapter is read by PEFT onto the fp32 base. Numbers are kept in a scores file, keyed by the content
of adapter and held-out set, so a second run computes only what changed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import report
import torch
from chat import Chat, Pair, PrefixModel, base_file, load_base, load_tokenizer, render, render_prompt, shared_prefix
from packages import data_folder
from rich.console import Console
from rich.progress import track

TENANTS = Path(__file__).parents[2] / "py/lorad/demo/tenants"
PAGE = Path(__file__).parents[2] / "docs/tenants.md"
SHARED_PROMPTS = ["Define: war", "Define: friend", "Define: computer", "Define: lawyer"]
BATCH = 20
# Where an answer has one right form: the characters of the answer that must be equal.
EXACT = {"phones": "the whole answer", "wordnet": "part of speech and category"}


def read_pairs(folder: Path) -> list[Pair]:
    """The held-out examples of a tenant."""
    rows = [json.loads(line) for line in (folder / "heldout.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(row["prompt"], row["response"]) for row in rows]


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


class Bench:
    """The base with all tenants' adapters beside it, one of them (or none) active at a time."""

    def __init__(self, gguf: Path, names: Sequence[str], scores: Path) -> None:
        from peft import PeftModel

        self.tokenizer = load_tokenizer(gguf)
        self.path = scores
        self.scores: dict[str, Any] = json.loads(scores.read_text()) if scores.exists() else {}
        self.model: Any = None
        self.hashes = {"base": digest(gguf.name.encode(), str(gguf.stat().st_size).encode())}
        base = load_base(gguf)
        for name in names:
            folder = TENANTS / name
            if self.model is None:
                self.model = PeftModel.from_pretrained(base, folder, adapter_name=name)
            else:
                self.model.load_adapter(folder, adapter_name=name)
            files = [(folder / part).read_bytes() for part in ("adapter_config.json", "adapter_model.safetensors")]
            self.hashes[name] = digest(*files)
        self.model.eval()
        self.pairs = {name: read_pairs(TENANTS / name) for name in names}

    def active(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """The named adapter for the length of a block; `base` is the model without any."""
        if name == "base":
            return self.model.disable_adapter()  # type: ignore[no-any-return]
        self.model.set_adapter(name)
        return contextlib.nullcontext()

    def kept(self, key: str, compute: Any) -> Any:
        """A number from the scores file, or computed now and added to it."""
        if key not in self.scores:
            self.scores[key] = compute()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.scores, indent=1, ensure_ascii=False))
        return self.scores[key]

    def perplexity(self, model: str, tenant: str, count: int) -> float:
        """Perplexity of the answers' tokens over the first `count` held-out examples of a tenant."""
        pairs = self.pairs[tenant][:count]
        key = f"ppl {self.hashes[model]} {digest(json.dumps(pairs).encode())}"
        result: float = self.kept(key, lambda: self._perplexity(model, pairs))
        return result

    @torch.inference_mode()
    def _perplexity(self, model: str, pairs: Sequence[Pair]) -> float:
        chats: list[Chat] = sorted((render(self.tokenizer, pair) for pair in pairs), key=lambda chat: len(chat.ids))
        prefix = chats[0].ids[: shared_prefix(chats)]
        total, tokens = 0.0, 0
        with self.active(model):
            scorer = PrefixModel(self.model, prefix)
            for start in range(0, len(chats), BATCH):
                loss, count = scorer.loss(chats[start : start + BATCH])
                total, tokens = total + loss.item(), tokens + count
        return math.exp(total / tokens)

    def answers(self, model: str, prompts: Sequence[str], tokens_max: int) -> list[str]:
        """Greedy answers, kept like the scores."""
        key = f"answers {self.hashes[model]} {tokens_max} {digest(json.dumps(list(prompts)).encode())}"
        result: list[str] = self.kept(key, lambda: self._answers(model, prompts, tokens_max))
        return result

    @torch.inference_mode()
    def _answers(self, model: str, prompts: Sequence[str], tokens_max: int) -> list[str]:
        found: dict[str, str] = {}
        rows = sorted((render_prompt(self.tokenizer, prompt), prompt) for prompt in dict.fromkeys(prompts))
        rows.sort(key=lambda row: len(row[0]))
        pad = self.tokenizer.eos_token_id
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            width = max(len(ids) for ids, _ in part)
            ids = torch.tensor([[pad] * (width - len(ids)) + ids for ids, _ in part])
            mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids, _ in part])
            with self.active(model):
                out = self.model.generate(
                    input_ids=ids, attention_mask=mask, max_new_tokens=tokens_max, do_sample=False, pad_token_id=pad
                )
            for (_, prompt), row in zip(part, out, strict=True):
                found[prompt] = self.tokenizer.decode(row[width:], skip_special_tokens=True)
        return [found[prompt] for prompt in prompts]

    def exact(self, model: str, tenant: str) -> float:
        """The share of held-out answers that are right, for tenants whose answers have one right form."""
        pairs = self.pairs[tenant]
        wanted = [answer.split(")")[0] if tenant == "wordnet" else answer for _, answer in pairs]
        given = self.answers(model, [prompt for prompt, _ in pairs], 10 if tenant == "wordnet" else 40)
        given = [answer.split(")")[0] if tenant == "wordnet" else answer.strip() for answer in given]
        return sum(a == b for a, b in zip(wanted, given, strict=True)) / len(pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description="Score the tenants and write docs/tenants.md.")
    parser.add_argument("--base", type=Path, help="SmolLM2-135M-Instruct as a GGUF file; default: the embedded base")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="score these and print, write no page")
    parser.add_argument("--cross", type=int, default=30, help="held-out examples per cell of the cross table")
    parser.add_argument("--scores", type=Path, default=data_folder() / "scores.json")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    console = Console()
    names = arguments.only or sorted(path.parent.name for path in TENANTS.glob("*/tenant.json"))
    bench = Bench(base_file(arguments.base), names, arguments.scores)
    own, cross, exact, shared, special = {}, {}, {}, {}, {}
    for name in track(names, "own held-out sets", console=console):
        own[name] = {model: bench.perplexity(model, name, 10**9) for model in ("base", name)}
        if name in EXACT:
            exact[name] = {model: bench.exact(model, name) for model in ("base", name)}
        prompts = json.loads((TENANTS / name / "tenant.json").read_text(encoding="utf-8"))["prompts"]
        special[name] = dict(zip(prompts, bench.answers(name, prompts, 80), strict=True))
        console.print(name, own[name], exact.get(name, ""), special[name], markup=False)
    for model in track(["base", *names], "greedy answers", console=console):
        shared[model] = bench.answers(model, SHARED_PROMPTS, 80)
        console.print(model, shared[model], markup=False)
    if arguments.only:
        return
    for model in track(["base", *names], "cross table", console=console):
        cross[model] = {name: bench.perplexity(model, name, arguments.cross) for name in names}
    described = [json.loads((TENANTS / name / "tenant.json").read_text(encoding="utf-8")) for name in names]
    sizes = {name: (TENANTS / name / "adapter_model.safetensors").stat().st_size for name in names}
    counts = {name: len(bench.pairs[name]) for name in names}
    sections = [
        report.heading(),
        report.tenants(described, sizes),
        report.own(own, exact, EXACT, counts),
        report.cross(cross, arguments.cross),
        report.shared(SHARED_PROMPTS, shared),
        report.special(special, SHARED_PROMPTS),
    ]
    PAGE.write_text("\n".join(sections), encoding="utf-8")
    losers = [name for name in names if own[name][name] > 0.8 * own[name]["base"]]
    losers += [name for name in names if min(cross, key=lambda model: cross[model][name]) != name]
    if losers:
        raise SystemExit(f"not clearly better than the base, or beaten on its own set: {', '.join(losers)}")
    console.print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
