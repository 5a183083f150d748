"""The tables in docs/adapters.md, made of the support table.

`python -m lorad.adapters.document docs/adapters.md` writes them anew between their marks and leaves the rest alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lorad.adapters.features import ROWS, Feature


def renewed(text: str) -> str:
    """The document with the tables as they are now."""
    begin = text.index("\n", text.index("<!-- rows:")) + 1
    end = text.index("<!-- end -->", begin)
    return text[:begin] + "\n" + "\n".join(_rows()) + "\n\n" + text[end:]


def _rows() -> list[str]:
    lines: list[str] = []
    for title, rows in ROWS:
        lines += ["", f"## {title}", "", "| what | how a file says it | state | to know, or to do |"]
        lines += ["| --- | --- | --- | --- |", *map(_row, rows)]
    return lines[1:]


def _row(row: Feature) -> str:
    state = f"refused: `{row.code}`" if row.code else "applied"
    words = ". ".join(filter(None, (row.reason, row.todo)))
    return f"| {row.name} | {row.where} | {state} | {words} |"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(renewed(file.read_text()))
