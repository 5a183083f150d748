"""Held-out texts, and how well a base and its adapters expect them: what interference can only hint at."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lorad import named_file
from lorad.engine.scorer import Scorer
from lorad.errors import InvalidRequest, LoradError
from lorad.models.fields import shown
from lorad.text.model import TextModel

TEXTS_BYTES_MAX = 64 << 20
BATCH = 24
"""Texts that are asked about at once."""


class Row(NamedTuple):
    """A line of a file: a plain text, or the answer to a user's message."""

    line: int
    """From 1."""
    prompt: str | None
    """None: a plain text."""
    text: str


class Texts(NamedTuple):
    """A set."""

    path: Path
    rows: tuple[Row, ...]


class Expected(NamedTuple):
    """A set as each model expects it."""

    path: Path
    tokens: int
    """That count: of answers with their end mark; of plain texts all but the first."""
    perplexities: dict[str, float]
    """By model; "" is the base."""


def read_texts(path: Path) -> Texts:
    """Reads JSON Lines: objects with `prompt` and `response`, as the demo's tenants' held-out sets, or with `text`."""
    try:
        # Not splitlines: an answer may have other separators than the file's.
        lines = named_file.read_text(path, TEXTS_BYTES_MAX).split("\n")
    except OSError as error:
        raise _refused(path, f"can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _refused(path, "isn't UTF-8") from None
    rows = tuple(_row(path, number, line) for number, line in enumerate(lines, 1) if line.strip())
    if not rows:
        raise _refused(path, "has no texts")
    return Texts(path, rows)


def expect(model: str, adapters: Mapping[str, Path], sets: Sequence[Texts], **options: Any) -> list[Expected]:
    """Perplexity of every set by the base and by each adapter; `options` are the engine's."""
    scorer = Scorer(model, {name: str(path) for name, path in adapters.items()}, **options)
    try:
        return [_expected(scorer, ["", *adapters], texts) for texts in sets]
    finally:
        scorer.close()


def _row(path: Path, number: int, line: str) -> Row:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"line {number} isn't JSON: {error}") from None
    fields = found if isinstance(found, dict) else {}
    given = {name: fields[name] for name in ("prompt", "response", "text") if name in fields}
    if given.keys() not in ({"prompt", "response"}, {"text"}) or {type(text) for text in given.values()} != {str}:
        raise _refused(path, f"line {number} wants prompt and response as strings, or text, is {shown(found)}")
    return Row(number, given.get("prompt"), given.get("response", given.get("text", "")))


def _expected(scorer: Scorer, models: Sequence[str], texts: Texts) -> Expected:
    engine = scorer.engine
    asked = [_ids(engine.text_model, engine.weights.config.eos_ids, texts.path, row) for row in texts.rows]
    found = {}
    for model in models:
        total, tokens = 0.0, 0
        for begin in range(0, len(asked), BATCH):
            some = range(begin, min(begin + BATCH, len(asked)))
            try:
                scores = scorer.scores([(model, *asked[index]) for index in some])
            except LoradError as refusal:
                where = f"of lines {texts.rows[some[0]].line} to {texts.rows[some[-1]].line}"
                raise _refused(texts.path, f"a text {where} can't be computed: {refusal.message}") from None
            total += sum(score.total for score in scores)
            tokens += sum(score.tokens for score in scores)
        found[model] = math.exp(-total / tokens)
    return Expected(texts.path, tokens, found)


def _ids(model: TextModel, eos_ids: Sequence[int], path: Path, row: Row) -> tuple[list[int], int]:
    """Tokens, and where those begin that count."""
    if row.prompt is None:
        ids, begin = model.encode(row.text), 1
    else:
        prompt = model.chat([{"role": "user", "content": row.prompt}])
        answer = model.tokenizer.encode(row.text, add_special_tokens=False)
        ids, begin = [*prompt, *answer, *eos_ids[:1]], len(prompt)
    if len(ids) <= begin:
        raise _refused(path, f"line {row.line} has no token to expect")
    return ids, begin


def _refused(path: Path, what: str) -> InvalidRequest:
    return InvalidRequest(f"texts: {shown(str(path))} {what}", code="texts_file", param="texts")
