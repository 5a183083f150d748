"""The generated parts of docs/options.md and docs/errors.md. `python tests/tools/documents.py` writes them anew.

Options come from `lorad.config`. Codes and statuses come from the sources; what a code means is written by hand in its
row and stays, and a row stays in the table that it's in. A new code gets a row without words, which the tests refuse.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path

from codes import ROOT, raised

from lorad.config import EngineConfig, ServerConfig, machine_memory
from lorad.fleet.config import RouteConfig

OPTIONS, ERRORS = ROOT / "docs/options.md", ROOT / "docs/errors.md"
CONFIGS = {"engine": EngineConfig, "server": ServerConfig, "route": RouteConfig}
END = "<!-- end -->"
_ROW = re.compile(r"^\| `(\w+)` \| [^|]* \| (.*) \|$", re.MULTILINE)


def options(text: str) -> str:
    """docs/options.md with its tables as they are now."""
    return _renewed(text, "options", lambda name, _: _options(CONFIGS[name]))


def errors(text: str) -> str:
    """docs/errors.md with the codes that there are now."""
    statuses: dict[str, set[int]] = {}
    for code, status, _ in raised():
        statuses.setdefault(code, set()).add(status)
    names = re.findall(r"<!-- errors: (\w+)", text)
    known = {code for code, _ in _ROW.findall(text)}

    def table(name: str, before: str) -> list[str]:
        rows = {code: words for code, words in _ROW.findall(before) if code in statuses}
        if name == names[-1]:
            rows |= dict.fromkeys(set(statuses) - known, "")
        lines = ["| code | status | what it means, and what to do |", "| --- | --- | --- |"]
        for code, words in sorted(rows.items()):
            lines.append(f"| `{code}` | {', '.join(map(str, sorted(statuses[code])))} | {words} |")
        return lines

    return _renewed(text, "errors", table)


def meanings(text: str) -> dict[str, str]:
    """What docs/errors.md says of each code."""
    return dict(_ROW.findall(text))


def _renewed(text: str, kind: str, table: Callable[[str, str], list[str]]) -> str:
    """`text` with what stands between each mark `<!-- kind: name -->` and its end made by `table(name, before)`."""
    parts = re.split(rf"(<!-- {kind}: (\w+)[^\n]*\n)", text)
    made = [parts[0]]
    for mark, name, rest in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        before, end, after = rest.partition(END)
        if not end:
            raise ValueError(f"{mark.strip()} has no {END}")
        made += [mark, "\n", "\n".join(table(name, before)), "\n\n", END, after]
    return "".join(made)


def _options(config: type) -> list[str]:
    hints = typing.get_type_hints(config)
    lines = ["| flag | environment | default | range | |", "| --- | --- | --- | --- | --- |"]
    for item in fields(config):
        name = item.name.replace("_", "-")
        kind = hints[item.name]
        plain = item.default_factory() if item.default_factory is not MISSING else item.default
        flag = f"`--no-{name}`, `--{name}`" if kind is bool and plain else f"`--{name}`"
        if item.name == "model":
            lines.append(f"| the first argument | | | | {item.metadata['help']} |")
            continue
        if item.metadata["metavar"]:
            flag += f" {item.metadata['metavar']} …"
        size = _size(plain) if "bytes" in item.name else ""
        default = {"": "", "False": "off", "True": "on", "[]": ""}.get(str(plain), f"{plain}{size}")
        cells = (flag, f"`LORAD_{item.name.upper()}`", default, _range(item, kind), item.metadata["help"])
        lines.append("|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|")
    return lines


def _range(item: Field[object], kind: object) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(kind))
    low, high, off = (item.metadata[name] for name in ("low", "high", "off"))
    parts = [] if off is None else [str(off)]
    if high is None:
        parts += [] if low is None else [f"from {low}"]
    else:
        most = "this machine's memory" if high is machine_memory else str(high)
        parts.append(f"{low} to {most}")
    return ", or ".join(parts)


def _size(value: object) -> str:
    """What a large power of two is in bytes' units."""
    if isinstance(value, int) and not isinstance(value, bool):
        for bits, unit in ((30, "GiB"), (20, "MiB")):
            if value >= 1 << bits and value % (1 << bits) == 0 and value < 1 << 40:
                return f" ({value >> bits} {unit})" if value >> bits < 1 << 10 else ""
    return ""


def main() -> None:
    """Writes both."""
    for path, renew in ((OPTIONS, options), (ERRORS, errors)):
        Path(path).write_text(renew(path.read_text()))


if __name__ == "__main__":
    main()
