"""From a folder to a checked adapter, in one call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lorad.adapters.chat_template import read_chat_template
from lorad.adapters.check import check_adapter
from lorad.adapters.checked import CheckedAdapter
from lorad.adapters.derived import BaseValues
from lorad.adapters.read import read_adapter
from lorad.adapters.reject import readable
from lorad.errors import AdapterRejected
from lorad.models.config import ModelConfig


def load_adapter(
    name: str,
    path: str | Path,
    config: ModelConfig,
    base_digest: str,
    *,
    max_lora_rank: int = 256,
    allow_no_effect: bool = False,
    base: BaseValues | None = None,
) -> CheckedAdapter:
    """Reads and checks the adapter at `path`, a folder or a file. A refusal's message begins with the adapter's name.

    Touches no shared state, so it may run on any thread; `base_digest` is `Weights.digest`. For `base` see
    `check_adapter`.
    """
    files = None
    try:
        files = read_adapter(path, config)
        checked = check_adapter(
            name,
            files,
            config,
            base_digest,
            max_lora_rank=max_lora_rank,
            allow_no_effect=allow_no_effect,
            base=base,
        )
        return replace(checked, chat_template=read_chat_template(path))
    except AdapterRejected as refusal:
        message = refusal.message if files is None else files.in_own_words(refusal.message)
        raise AdapterRejected(f"adapter {name!r}: {readable(message)}", code=refusal.code) from None
