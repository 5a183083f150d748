"""The sections of docs/tenants.md as markdown, from measured numbers and real answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def quote(answer: str) -> str:
    """An answer for a table cell: line ends shown, nothing else changed."""
    return answer.strip().replace("\n", "<br>") or "(empty)"


def heading() -> str:
    return """# The demo's tenants

<!-- Written by `python examples/tenants/evaluate.py --base GGUF`; don't edit by hand. -->

Real LoRA adapters for SmolLM2-135M-Instruct (Apache-2.0), trained with PEFT by `examples/tenants/train.py` on texts
from Debian packages. All of them answer the same question, `Define: WORD`, each in its own way. Everything here was
computed by transformers and PEFT in fp32 from the committed bf16 files. A base of 135 million parameters knows little:
the answers show whose they are, not what is true.
"""


def tenants(described: Sequence[Mapping[str, Any]], sizes: Mapping[str, int]) -> str:
    rows = []
    for item in described:
        pattern = item["extra"].get("rank_pattern", {})
        ranks = sorted({item["rank"], *pattern.values()})
        notes = ["rsLoRA"] if item["extra"].get("use_rslora") else []
        notes += ["rank and alpha patterns"] if pattern else []
        targets = ", ".join(name.removesuffix("_proj") for name in item["targets"])
        training = item["training"]
        rows.append(
            [
                f"`{item['name']}`",
                item["description"],
                " / ".join(map(str, ranks)) + (f" ({', '.join(notes)})" if notes else ""),
                targets,
                f"{sizes[item['name']] / 1e6:.1f}",
                f"{training['steps']} × {training['batch']}",
                f"{training.get('cpu_minutes', '')}",
                f"{training['minutes']}",
            ]
        )
    total = sum(sizes.values()) / 1e6
    head = ["tenant", "what it answers", "rank", "targets", "MB", "steps × batch", "CPU minutes", "wall minutes"]
    sources = [[f"`{item['name']}`", item["title"], item["source"], item["licence"]] for item in described]
    return (
        f"\n## Adapters\n\n{table(head, rows)}\nTogether {total:.1f} MB. Minutes are those of the committed run, one "
        f"thread on a two-core AVX2 machine that was busy with other work.\n\n"
        f"{table(['tenant', 'text', 'source', 'licence'], sources)}"
    )


def own(
    scores: Mapping[str, Mapping[str, float]],
    exact: Mapping[str, Mapping[str, float]],
    meaning: Mapping[str, str],
    counts: Mapping[str, int],
) -> str:
    rows = []
    for name, found in scores.items():
        right = f"{exact[name]['base']:.0%} → {exact[name][name]:.0%} ({meaning[name]})" if name in exact else ""
        row = [f"`{name}`", str(counts[name]), f"{found['base']:.1f}", f"**{found[name]:.1f}**"]
        rows.append([*row, f"{found['base'] / found[name]:.1f} ×", right])
    head = ["tenant", "examples", "base", "adapter", "better by", "exact answers, base → adapter"]
    return f"\n## On its own held-out set\n\nPerplexity of the answers' tokens; lower is better.\n\n{table(head, rows)}"


def cross(scores: Mapping[str, Mapping[str, float]], count: int) -> str:
    names = list(next(iter(scores.values())))
    rows = []
    for model, found in scores.items():
        cells = [f"**{found[name]:.1f}**" if name == model else f"{found[name]:.1f}" for name in names]
        rows.append([f"`{model}`", *cells])
    return (
        f"\n## Every adapter on every held-out set\n\nPerplexity on the first {count} examples of each set; rows are "
        f"models, columns are sets.\n\n{table(['', *(f'`{name}`' for name in names)], rows)}"
    )


def shared(prompts: Sequence[str], answers: Mapping[str, Sequence[str]]) -> str:
    parts = ["\n## One question, all tenants\n\nGreedy answers, at most 80 tokens.\n"]
    for index, prompt in enumerate(prompts):
        rows = [[f"`{model}`", quote(found[index])] for model, found in answers.items()]
        parts.append(f"\n### {prompt}\n\n{table(['model', 'answer'], rows)}")
    return "".join(parts)


def special(answers: Mapping[str, Mapping[str, str]], shown: Sequence[str]) -> str:
    rows = []
    for name, found in answers.items():
        rows += [[f"`{name}`", prompt, quote(answer)] for prompt, answer in found.items() if prompt not in shown]
    return f"\n## Questions of their own\n\n{table(['tenant', 'prompt', 'greedy answer'], rows)}"
