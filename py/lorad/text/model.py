"""`TextModel`: all that a base model's files say about text, from a GGUF file or a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import tokenizers

from lorad.errors import InvalidRequest, ModelRejected
from lorad.models.fields import shown, token_ids
from lorad.models.gguf_header import read_header
from lorad.models.gguf_keys import Keys
from lorad.named_file import expanded, is_file, is_folder, read_json, read_small, read_text
from lorad.text.gguf_tokenizer import tokenizer_from_gguf
from lorad.text.template import OPEN, ChatTemplate, Rendering
from lorad.text.template_file import CONFIG as TOKENIZER_CONFIG
from lorad.text.template_file import FILE as TEMPLATE_FILE
from lorad.text.template_file import read_template
from lorad.text.tokenizer import Tokenizer
from lorad.text.tools import without_tools

TOKENIZER_BYTES_MAX = 256 << 20
JSON_BYTES_MAX = 64 << 20
TEMPLATE_BYTES_MAX = 1 << 20
COMPILED_MAX = 64
"""Adapters' templates that are kept compiled, those that were used last."""


class TextModel:
    """A tokenizer and, if the model has one, its chat template."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None, name: str) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.name = name
        """What the model calls itself: the file's or folder's own name."""
        self._compiled = lru_cache(COMPILED_MAX)(
            partial(ChatTemplate, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token)
        )
        """Of adapters' templates, by source."""

    def encode(self, text: str) -> list[int]:
        """Ids of a plain text, as the model was trained to see one."""
        return self.tokenizer.encode(text)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        template: str = "",
        rendering: Rendering = OPEN,
        add_special_tokens: bool = False,
        check: Callable[[int], None] = lambda characters: None,
    ) -> list[int]:
        """Ids of a conversation. The template itself writes special tokens. `template`: the source of an adapter's
        own; "": the model's. `check` is told how many characters the text has, and refuses too many."""
        text = self.render(messages, tools, template=template, rendering=rendering)
        check(len(text))
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        template: str = "",
        rendering: Rendering = OPEN,
    ) -> str:
        """A conversation as text. Tools are written by the template if it knows them, else told by the system."""
        used = self._compiled(template) if template else self.template
        if used is None:
            raise InvalidRequest(
                "messages: this model has no chat template; give one with --chat-template, or use /v1/completions",
                code="no_chat_template",
                param="messages",
            )
        if used.tools:
            return used.render(messages, tools=tools or None, rendering=rendering)
        return used.render(without_tools(messages, tools), rendering=rendering)


def load_text_model(path: str | Path, chat_template: str | Path = "") -> TextModel:
    """Reads the text part of a GGUF file or a folder; `chat_template` is a file that replaces the model's own."""
    path = Path(path)
    if is_folder(path):
        tokenizer, source = _from_folder(path)
    elif is_file(path):
        metadata = read_header(path).metadata
        tokenizer, source = tokenizer_from_gguf(metadata), Keys(metadata).text("tokenizer.chat_template", "")
    else:
        raise ModelRejected(f"no model at {shown(str(path))}", code="model_missing", param="model")
    if chat_template:
        try:
            source = read_text(expanded(chat_template), TEMPLATE_BYTES_MAX)
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(
                f"chat_template: {shown(str(chat_template))} can't be read: {getattr(error, 'strerror', error)}",
                code="chat_template",
                param="chat_template",
            ) from None
    template = None
    if source:
        template = ChatTemplate(source, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token)
    return TextModel(tokenizer, template, path.name if is_folder(path) else path.stem)


def _from_folder(folder: Path) -> tuple[Tokenizer, str]:
    try:
        core = tokenizers.Tokenizer.from_buffer(read_small(folder / "tokenizer.json", TOKENIZER_BYTES_MAX))
    except FileNotFoundError:
        raise ModelRejected(
            f"the model folder {shown(str(folder))} has no tokenizer.json", code="tokenizer_missing", param="model"
        ) from None
    except OSError as error:
        raise ModelRejected(f"tokenizer.json can't be read: {error.strerror}", code="model_file") from None
    except Exception as error:
        # `tokenizers` raises a bare Exception for whatever is wrong with the file.
        raise ModelRejected(f"tokenizer.json can't be read: {error}", code="tokenizer_form") from None
    config = _json(folder / TOKENIZER_CONFIG)
    bos, eos = _token(config.get("bos_token")), _token(config.get("eos_token"))
    ends: set[int] = set()
    for source in (_json(folder / "generation_config.json"), _json(folder / "config.json")):
        ends |= set(token_ids(source.get("eos_token_id"), "eos_token_id"))
        if ends:
            # The generation config knows all ends of a chat model; the config only the base's.
            break
    if eos and (index := core.token_to_id(eos)) is not None:
        ends.add(index)
    return Tokenizer(core, end_ids=ends, bos_token=bos, eos_token=eos), _folder_template(folder, config)


def _folder_template(folder: Path, config: dict[str, Any]) -> str:
    try:
        return read_template(folder, config, TEMPLATE_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise ModelRejected(
            f"{TEMPLATE_FILE} can't be read: {getattr(error, 'strerror', error)}", code="model_file"
        ) from None


def _json(file: Path) -> dict[str, Any]:
    try:
        read = read_json(file, JSON_BYTES_MAX)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ModelRejected(f"{file.name} can't be read: {error.strerror}", code="model_file") from None
    except ValueError as error:
        raise ModelRejected(f"{file.name} isn't JSON: {error}", code="model_config") from None
    return read if isinstance(read, dict) else {}


def _token(given: Any) -> str:
    """A special token's text: given as it is, or as an object with `content`."""
    if isinstance(given, dict):
        given = given.get("content")
    return given if isinstance(given, str) else ""
