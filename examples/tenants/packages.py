"""Fetch the Debian packages the tenants are trained on and unpack them into a data folder.

Nothing is installed: `apt-get download` fetches the `.deb` for this machine and `dpkg -x` unpacks it, so this
needs Debian's tools but no root. A package that is already unpacked is not fetched again.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("dict-devil", "dict-jargon", "wordnet-base", "bible-kjv", "bible-kjv-text", "festlex-cmu")
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def data_folder() -> Path:
    """Where unpacked packages live when the caller names no folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "lorad" / "tenants"


def unpack(name: str, data: Path) -> Path:
    """The root of one unpacked package, fetching it on the first call."""
    root = data / name
    if root.is_dir():
        return root
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise SystemExit(f"{tool} not found: the training texts come from Debian packages, use a Debian machine")
    data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=data) as scratch:
        fetched = subprocess.run(
            ["apt-get", "download", name], cwd=scratch, capture_output=True, text=True, check=False
        )
        debs = list(Path(scratch).glob("*.deb"))
        if fetched.returncode or not debs:
            raise SystemExit(f"cannot download {name}: {fetched.stderr.strip()} (try `apt-get update` first)")
        subprocess.run(["dpkg", "-x", str(debs[0]), f"{scratch}/root"], check=True)
        Path(scratch, "root").rename(root)
    return root


def copyright_text(name: str, data: Path) -> str:
    """The copyright file of a package, word for word."""
    return (unpack(name, data) / "usr/share/doc" / name / "copyright").read_text(encoding="utf-8")


def _number(text: str) -> int:
    value = 0
    for digit in text:
        value = value * 64 + _DIGITS.index(digit)
    return value


def dictd_entries(name: str, database: str, data: Path) -> Iterator[tuple[str, str]]:
    """(headword, text) of a dictd database, in the order of its index, database notices left out."""
    folder = unpack(name, data) / "usr/share/dictd"
    body = gzip.decompress((folder / f"{database}.dict.dz").read_bytes())
    for line in (folder / f"{database}.index").read_text(encoding="utf-8").splitlines():
        headword, offset, size = line.split("\t")[:3]
        if not headword.startswith("00-database"):
            yield headword, body[_number(offset) : _number(offset) + _number(size)].decode("utf-8", "replace")


def kjv_verses(data: Path) -> Iterator[tuple[str, str]]:
    """(reference, text) of each verse, printed by the `bible` program of bible-kjv from bible-kjv-text."""
    program = unpack("bible-kjv", data) / "usr/bin/bible"
    texts = unpack("bible-kjv-text", data) / "usr/lib"
    printed = subprocess.run(
        [str(program), "-f", "-p", str(texts), "Gen1:1-Rev22:21"], capture_output=True, text=True, check=True
    )
    for line in printed.stdout.splitlines():
        reference, _, text = line.strip().partition(" ")
        if ":" in reference and text:
            yield reference, text.strip()
