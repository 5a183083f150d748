"""The chat template that an adapter's folder brings along: requests for the adapter are rendered by it."""

from __future__ import annotations

from pathlib import Path

from lorad.adapters.files import read_json
from lorad.adapters.reject import reject
from lorad.errors import ModelRejected
from lorad.named_file import is_file, is_folder
from lorad.text.template import ChatTemplate
from lorad.text.template_file import CONFIG, FILE, read_template

BYTES_MAX = 1 << 17
"""Longest source. The server keeps it for as long as the adapter is registered."""
CONFIG_BYTES_MAX = 64 << 20
"""The tokenizer's config lists all added tokens."""


def read_chat_template(path: str | Path) -> str:
    """Its source; "" if there's none, as in a single file. Refused if it can't be read or isn't a template."""
    folder = Path(path)
    if not is_folder(folder):
        return ""
    config = read_json(folder, CONFIG, CONFIG_BYTES_MAX) if is_file(folder / CONFIG) else {}
    try:
        source = read_template(folder, config, BYTES_MAX)
    except OSError as error:
        raise reject("adapter_chat_template", f"{FILE} can't be read: {error.strerror}") from None
    except ValueError:
        raise reject("adapter_chat_template", f"{FILE} isn't UTF-8") from None
    if len(source) > BYTES_MAX:
        raise reject(
            "adapter_chat_template", f"{CONFIG}: chat_template has {len(source)} characters, at most {BYTES_MAX}"
        )
    try:
        if source:
            source.encode()
            ChatTemplate(source)
    except UnicodeEncodeError:
        raise reject("adapter_chat_template", f"{CONFIG}: chat_template has half of a surrogate pair") from None
    except ModelRejected as error:
        raise reject("adapter_chat_template", error.message) from None
    return source
