"""Chat templates: a conversation to the text that the model was trained on.

Templates come with models and adapters, so they run in Jinja's immutable sandbox with a budget (`budget.py`). They have
the names that transformers gives them (`raise_exception`, `strftime_now`, `tojson`, `{% generation %}`, `{% break %}`).
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser

from lorad.errors import InvalidRequest, ModelRejected
from lorad.text.budget import Clock, Sandbox, spending, watched
from lorad.text.tools import BEGIN

TEXT_LENGTH_MAX = 64 << 20
"""Characters of a rendered conversation. A request's body is far shorter; only a runaway template gets here."""

OWN_NAMES = frozenset(
    (
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template"),
        *("bos_token", "eos_token", "raise_exception", "strftime_now"),
    )
)
"""What templates know by these names is said elsewhere, or is the model's own: variables may not be called so."""


_MARK = "[[continued here]]"
"""Written behind the last message to find its end. If a conversation has it, the last one counts."""


class Rendering(NamedTuple):
    """How a conversation is written, whatever it says."""

    add_generation_prompt: bool = True
    """It ends open for the assistant's answer."""
    continue_final_message: bool = False
    """It ends with the last message's last character, and the answer continues that."""
    variables: Mapping[str, Any] = {}
    """What the template knows besides, by none of `OWN_NAMES`."""


OPEN = Rendering()
"""As it's written unless a request says otherwise."""


class ChatTemplate:
    """One compiled template."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        self._names = {"bos_token": bos_token, "eos_token": eos_token}
        environment = _environment()
        try:
            names = jinja2.meta.find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(watched(environment.parse(source)))
        except (jinja2.TemplateError, SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
            # Jinja writes Python: what that compiler finds too deep or can't read isn't a TemplateError.
            raise ModelRejected(f"the chat template doesn't compile: {error}", code="chat_template") from None
        self.tools = "tools" in names and BEGIN in source
        """It writes tools, calls and results in the form of `lorad.text.tools`."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        rendering: Rendering = OPEN,
    ) -> str:
        """The conversation as text. A template's refusal is the request's fault."""
        if rendering.continue_final_message:
            # The blank behind the mark tells whether the template keeps blanks at a message's end.
            *before, last = messages
            messages = [*before, {**last, "content": f"{last['content']}{_MARK} "}]
        text = self._text(messages, tools, rendering)
        return _open_ended(text) if rendering.continue_final_message else text

    def _text(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, rendering: Rendering
    ) -> str:
        names = {
            **rendering.variables,
            "messages": list(messages),
            "tools": tools,
            "documents": None,
            "add_generation_prompt": rendering.add_generation_prompt,
            **self._names,
        }
        parts: list[str] = []
        length = 0
        try:
            with spending():
                for part in self._template.generate(names):
                    length += len(part)
                    if length > TEXT_LENGTH_MAX:
                        raise jinja2.TemplateError(f"the text is longer than {TEXT_LENGTH_MAX} characters")
                    parts.append(part)
        except jinja2.TemplateError as error:
            raise InvalidRequest(
                f"messages: the chat template refuses them: {error.message or type(error).__name__}",
                code="chat_template",
                param="messages",
            ) from None
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
            # Raised by operators inside the template: the conversation isn't of the shape that it expects.
            raise InvalidRequest(
                f"messages: the chat template can't render them ({type(error).__name__})",
                code="chat_template",
                param="messages",
            ) from None
        return "".join(parts)


def _open_ended(text: str) -> str:
    """What comes before the mark."""
    before, found, after = text.rpartition(_MARK)
    if not found:
        raise InvalidRequest(
            "continue_final_message: the chat template doesn't write the last message as it is",
            code="chat_template",
            param="continue_final_message",
        )
    return before if after.startswith(" ") else before.rstrip()


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's part for training; in serving it's its content."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 reads a class attribute)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> Sandbox:
    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationTag, Clock]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which models have never seen.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)
