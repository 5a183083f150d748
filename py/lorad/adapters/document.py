"""The tables in docs/adapters.md, made of the support table and of the codes.

`python -m lorad.adapters.document docs/adapters.md` writes them anew between their marks and leaves the rest alone.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from lorad.adapters import reject
from lorad.adapters.features import ROWS, Feature


def renewed(text: str) -> str:
    """The document with the tables as they are now."""
    for mark, lines in (("rows", _rows()), ("codes", _codes())):
        begin = text.index("\n", text.index(f"<!-- {mark}:")) + 1
        end = text.index("<!-- end -->", begin)
        text = text[:begin] + "\n" + "\n".join(lines) + "\n\n" + text[end:]
    return text


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


def _codes() -> list[str]:
    found = re.findall(r"^(adapter_\w+) +(.+)$", reject.__doc__ or "", re.MULTILINE)
    return ["| code | meaning |", "| --- | --- |", *(f"| `{code}` | {meaning} |" for code, meaning in found)]


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(renewed(file.read_text()))
