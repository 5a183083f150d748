"""The demo's picture: the answers side by side, with their speed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from lorad.demo.burst import Answer


def answers_table(question: str, answers: Sequence[Answer], titles: dict[str, str]) -> Table:
    """One row for each model: what it said, how many tokens, how long to the first, how fast."""
    table = Table(title=f"“{question}”, asked of every model at once", title_justify="left", show_lines=True)
    table.add_column("model", style="bold cyan", no_wrap=True)
    table.add_column("answer", ratio=1)
    table.add_column("tokens", justify="right")
    table.add_column("TTFT", justify="right")
    table.add_column("tok/s", justify="right")
    for answer in answers:
        name = Text(answer.model)
        if title := titles.get(answer.model):
            name.append(f"\n{title}", style="not bold dim")
        table.add_row(
            name,
            Text(answer.error, style="red") if answer.error else Text(answer.text.strip() or "…"),
            str(answer.tokens or ""),
            f"{answer.ttft_s * 1000:.0f} ms" if answer.ttft_s is not None else "",
            f"{answer.tokens_per_second:.0f}" if answer.tokens else "",
        )
    return table


def total_line(answers: Sequence[Answer]) -> str:
    """All answers together, over the time of the slowest."""
    tokens = sum(answer.tokens for answer in answers)
    seconds = max((answer.total_s for answer in answers), default=0.0)
    rate = tokens / seconds if seconds else 0.0
    return f"{len(answers)} models in one batch: {tokens} tokens in {seconds:.2f} s, {rate:.0f} tok/s together"
