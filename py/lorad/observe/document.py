"""The tables in docs/metrics.md, made of the catalogue.

`python -m lorad.observe.document docs/metrics.md` writes them anew between their marks and leaves the rest alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lorad.observe.catalog import SECTIONS, Metric

BEGIN, END = "<!-- metrics: made by `make metrics-doc` -->\n", "<!-- end -->"


def renewed(text: str) -> str:
    """The document with the tables as they are now."""
    begin = text.index(BEGIN) + len(BEGIN)
    lines: list[str] = []
    for title, metrics in SECTIONS:
        lines += ["", f"### {title}", "", "| metric | kind | labels | |", "| --- | --- | --- | --- |"]
        lines += map(_row, metrics)
    return text[:begin] + "\n".join(lines) + "\n\n" + text[text.index(END, begin) :]


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.series}` | {metric.kind} | {labels} | {metric.help} |"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(renewed(file.read_text()))
