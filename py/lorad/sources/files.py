"""Which files of a folder belong to an adapter. The rest isn't fetched: pickles, optimizer states, read-me files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lorad.sources.policy import SourcePolicy
from lorad.sources.reject import reject

CONFIG, TENSORS, INDEX = "adapter_config.json", "adapter_model.safetensors", "adapter_model.safetensors.index.json"
TOKENIZER = ("added_tokens.json", "tokenizer.json")
"""What `adapters/read.py` looks into for ids of added tokens."""
TEMPLATE = ("chat_template.jinja", "tokenizer_config.json")
"""Where an adapter's own chat template is."""
KNOWN = (CONFIG, TENSORS, INDEX, *TOKENIZER, *TEMPLATE)
"""What is asked for where names can't be listed."""
_TENSORS = re.compile(r"[^.].*\.(safetensors|gguf)", re.DOTALL)
_PICKLES = re.compile(r".*\.(bin|pt|pth|pkl|ckpt)", re.DOTALL)


class Item(NamedTuple):
    """A file of a source."""

    name: str
    bytes: int | None
    """None: the source doesn't say."""
    tag: str = ""
    """Changes with the content; empty: the source has none."""
    strong: bool = False
    """Whether the same tag means the same bytes, so that they needn't be read again."""
    proof: str = ""
    """`sha256:…` or `git:…` (a git blob's sha1), where the source states one."""


def wanted(name: str) -> bool:
    """Whether a file of this name is fetched."""
    return name in (CONFIG, *TOKENIZER, *TEMPLATE) or name.endswith(".safetensors.index.json") or bool(
        _TENSORS.fullmatch(name)
    )  # fmt: skip


def choose(names: Iterable[str], where: str) -> list[str]:
    """The adapter's files among `names`, sorted; refused if they can't be an adapter."""
    names = sorted(set(names))
    found = [name for name in names if wanted(name)]
    if any(name.endswith(".gguf") for name in found):
        return found
    if not any(name.endswith(".safetensors") for name in found):
        for name in names:
            if _PICKLES.fullmatch(name):
                raise reject(
                    "source_missing",
                    f"{where} has no {TENSORS}; {name} is a pickle, which can run code: save it as safetensors",
                )
        raise reject("source_missing", f"{where} has no {TENSORS} and no .gguf file")
    if CONFIG not in found:
        raise reject("source_missing", f"{where} has no {CONFIG}")
    return found


def check_sizes(items: Sequence[Item], policy: SourcePolicy, where: str) -> int | None:
    """Bytes of all items, None if one isn't known; refused as `source_size` if they're too many."""
    if len(items) > policy.files_max:
        raise reject("source_size", f"{where} has {len(items)} files of adapters, more than {policy.files_max}")
    known = sum(item.bytes or 0 for item in items)
    if known > policy.bytes_max:
        raise reject("source_size", f"{where} has {known} bytes, more than {policy.bytes_max}")
    return None if any(item.bytes is None for item in items) else known
