"""Read the common words of WordNet 3.0: first sense, gloss and nearest relations, from its plain data files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packages import unpack

_SPEECH = {"noun": "noun", "verb": "verb", "adj": "adjective", "adv": "adverb"}
_LETTER = {"n": "noun", "v": "verb", "a": "adj", "s": "adj", "r": "adv"}
_CATEGORY = re.findall(
    r"\w+",
    """
    all relational all top act animal artifact attribute body cognition communication event feeling food group location
    motive object person phenomenon plant possession process quantity relation shape state substance time
    body change cognition communication competition consumption contact creation emotion motion perception possession
    social stative weather participle
    """,
)


@dataclass(frozen=True)
class Sense:
    """The most frequent sense of a word."""

    speech: str
    category: str
    gloss: str
    relations: dict[str, list[str]]


@dataclass(frozen=True)
class _Synset:
    category: str
    words: list[str]
    pointers: list[tuple[str, str, str]]
    gloss: str


def _synset(line: str) -> _Synset:
    """One line of a data file; `wndb(5WN)` describes the columns."""
    columns, _, gloss = line.partition(" | ")
    fields = columns.split()
    count = int(fields[3], 16)
    words = [re.sub(r"\(\w+\)$", "", word).replace("_", " ") for word in fields[4 : 4 + 2 * count : 2]]
    first = 5 + 2 * count
    pointers = [
        (fields[first + 4 * i], fields[first + 4 * i + 1], _LETTER[fields[first + 4 * i + 2]])
        for i in range(int(fields[first - 1]))
    ]
    definition = re.split(r'; "', gloss.strip())[0].strip()
    return _Synset(_CATEGORY[int(fields[1])], words, pointers, definition)


@cache
def _database(data: Path) -> dict[tuple[str, str], _Synset]:
    folder = unpack("wordnet-base", data) / "usr/share/wordnet"
    synsets = {}
    for speech in _SPEECH:
        for line in (folder / f"data.{speech}").read_text(encoding="latin-1").splitlines():
            if not line.startswith("  "):
                synsets[speech, line[:8]] = _synset(line)
    return synsets


@cache
def common_words(data: Path, *, singles: bool) -> dict[str, Sense]:
    """Words that WordNet's tagged texts contain, each with the sense those texts use most."""
    folder = unpack("wordnet-base", data) / "usr/share/wordnet"
    best: dict[str, tuple[int, str, str]] = {}
    for line in (folder / "cntlist.rev").read_text(encoding="latin-1").splitlines():
        key, number, count = line.split()
        lemma, _, rest = key.partition("%")
        speech = ("noun", "verb", "adj", "adv", "adj")[int(rest[0]) - 1]
        if number == "1" and int(count) >= 2 and int(count) > best.get(lemma, (0, "", ""))[0]:
            best[lemma] = (int(count), speech, key)
    senses = {}
    synsets = _database(data)
    for speech, shown in _SPEECH.items():
        for line in (folder / f"index.{speech}").read_text(encoding="latin-1").splitlines():
            if line.startswith("  "):
                continue
            fields = line.split()
            lemma = fields[0]
            if best.get(lemma, (0, "", ""))[1] != speech or (singles and not re.fullmatch(r"[a-z]{3,}", lemma)):
                continue
            synset = synsets[speech, fields[6 + int(fields[3])]]
            senses[lemma] = Sense(shown, synset.category, synset.gloss, _relations(lemma, synset, synsets))
    return senses


def _relations(lemma: str, synset: _Synset, synsets: dict[tuple[str, str], _Synset]) -> dict[str, list[str]]:
    """Synonyms, broader and similar words and opposites, each without the word itself."""

    def by(*symbols: str) -> list[str]:
        found = [synsets[letter, offset].words[0] for symbol, offset, letter in synset.pointers if symbol in symbols]
        return [word for word in dict.fromkeys(found) if word != lemma]

    return {
        "same": [word for word in synset.words if word.lower() != lemma],
        "broader": by("@"),
        "similar": by("&"),
        "opposite": by("!"),
    }
