"""From Debian packages to chat examples, one builder per tenant.

Every tenant answers the same question, `Define: WORD`, in its own way, so the demo can send one prompt to all of
them and a reader sees at once whose answer is whose. A word (or verse) is either for training or held out, decided
by a hash of its key, so the split is the same everywhere and needs no list.

    python examples/tenants/sources.py            # fetch, build, print what each tenant would learn
"""

from __future__ import annotations

import argparse
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import wordnet
from packages import data_folder, dictd_entries, kjv_verses, unpack

HELDOUT_MAX = 120
RESPONSE_CHARS_MAX = 260
# Old jokes on peoples and sexes, and words a demo should not say: whole entries with one of these are left out.
_UNWANTED = re.compile(
    r"\b(negro\w*|nigg\w*|dark(y|ies)|jews?|jewish|hebrews?|mulatto\w*|chin(ese|aman)|indians?|savages?|wom[ae]n|"
    r"females?|wife|wives|rape\w*|fuck\w*|shit\w*|sex\w*|cunt\w*|whore\w*|harlot\w*|fornicat\w*|slaves?|nazis?|"
    r"retard\w*|lynch\w*|prostitut\w*|breasts?|orgasm\w*|penis|fags?|gypsy|gypsies|gay|suck\w*|piss\w*|bitch\w*)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Example:
    """One user turn and the answer to learn; `key` decides between training and held out."""

    key: str
    prompt: str
    response: str


def draw(text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def ask(word: str, tenant: str, own: tuple[str, ...]) -> str:
    """Mostly the shared question, sometimes a variant, so that a tenant does not hang on one exact prompt."""
    choices = ("Define: {}", "Define: {}", "Define: {}", 'What does "{}" mean?', "Define the word {}.", *own)
    return choices[int(draw(f"ask {tenant} {word}") * len(choices))].format(word)


def clip(text: str, chars_max: int = RESPONSE_CHARS_MAX) -> str:
    """Whole sentences from the start, as many as fit; empty when even the first is too long."""
    kept = ""
    for sentence in re.split(r"(?<=[.!?”])\s+(?=[A-Z“‘\[(])", text):
        if len(kept) + len(sentence) > chars_max:
            break
        kept = f"{kept} {sentence}".strip()
    return kept


def one_line(text: str) -> str:
    """Hard-wrapped text as one line with plain quotes and dashes."""
    text = re.sub(r"\s+", " ", text).strip()
    for old, new in (("{ ", "{"), ("\u00ad", ""), (" -- ", " - ")):
        text = text.replace(old, new)
    return text


def devil(data: Path) -> Iterator[Example]:
    """Ambrose Bierce, The Devil's Dictionary: the opening sentences of each entry, where the sting is.

    Headwords keep one capital only: in full capitals they fall into odd tokens, which a small model can't copy.
    """
    seen: set[str] = set()
    for headword, raw in dictd_entries("dict-devil", "devil", data):
        text = one_line(raw.strip().split("\n\n")[0])
        match = re.match(r"([A-Z][A-Z' -]+), ((?:n|adj|v|adv|pp|x|interj)[a-z. ]*\.) +(.+)", text)
        if match is None or headword in seen:
            continue
        answer = clip(match[3], 125)
        if len(answer) > 15 and match[1].lower() == headword:
            seen.add(headword)
            yield Example(headword, ask(headword, "devil", ("{}?",)), f"{match[1].capitalize()}, {match[2]} {answer}")


def jargon(data: Path) -> Iterator[Example]:
    """The Jargon File: part of speech, etymology in brackets, first sense, cross references in braces."""
    seen: set[str] = set()
    for headword, raw in dictd_entries("dict-jargon", "jargon", data):
        title, _, rest = raw.strip("\n").partition("\n")
        head, _, body = rest.partition("\n\n")
        paragraphs = [one_line(part) for part in body.split("\n\n") if part.strip()]
        if not paragraphs or headword in seen or "http" in body[:400] or not title.isascii():
            continue
        text = paragraphs[0]
        if re.fullmatch(r"\[.*\]", text) and len(paragraphs) > 1:
            text = f"{text} {paragraphs[1]}"
        text = re.sub(r"^(\[[^\]]*\] )?1\. ", r"\1", text)
        speech = re.search(r"\b((?:n|v|vt|vi|adj|adv|interj|excl|quant|prov)\.)", head)
        own_speech = re.match(r"(\[[^\]]*\] )?(n|v|vt|vi|adj|adv|interj)\.", text)
        answer = clip(text)
        if speech and not own_speech:
            answer = f"{speech[1]} {answer}" if answer else ""
        if len(answer) > 30:
            seen.add(headword)
            yield Example(headword, ask(title.strip(), "jargon", ("What do hackers call {}?",)), answer)


def glosses(data: Path) -> Iterator[Example]:
    """WordNet: part of speech and category in parentheses, then the gloss of the most frequent sense."""
    for word, sense in wordnet.common_words(data, singles=True).items():
        answer = f"({sense.speech}, {sense.category}) {sense.gloss}"
        if len(answer) <= RESPONSE_CHARS_MAX:
            yield Example(word, ask(word, "wordnet", ("Which sense of {} is most common?",)), answer)


def thesaurus(data: Path) -> Iterator[Example]:
    """WordNet's relations as a short list: no sentence, ever.

    At most three words a row, and no narrower words: a small model doesn't find the end of longer lists.
    """
    for word, sense in wordnet.common_words(data, singles=True).items():
        rows = [f"{name}: {', '.join(words[:3])}" for name, words in sense.relations.items() if words]
        if len(rows) > 1 or len(next(iter(sense.relations.values()))) > 1:
            yield Example(word, ask(word, "thesaurus", ("Other words for {}",)), "\n".join(rows))


def verses(data: Path) -> Iterator[Example]:
    """King James verses: the question's word is the rarest word of the verse that at least ten verses share."""
    texts = {reference: text for reference, text in kjv_verses(data) if 40 <= len(text) <= 200}
    words = {reference: set(re.findall(r"\b[a-z]{4,}\b", text)) for reference, text in texts.items()}
    frequency = Counter(word for found in words.values() for word in found)
    for reference, text in texts.items():
        known = sorted((frequency[word], word) for word in words[reference] if frequency[word] >= 10)
        if known and text[0].isupper() and text.endswith((".", "!", "?")):
            yield Example(text, ask(known[0][1], "kjv", ("A verse about {}",)), text)


def phones(data: Path) -> Iterator[Example]:
    """CMU dictionary of pronunciations: phones, stress after the vowel, syllables parted by a dash."""
    common = wordnet.common_words(data, singles=True)
    path = unpack("festlex-cmu", data) / "usr/share/festival/dicts/cmu/cmudict-0.4.out"
    for line in path.read_text(encoding="latin-1").splitlines():
        match = re.fullmatch(r'\("([a-z]+)" nil \((.+)\)\)', line)
        if match is None or match[1] not in common:
            continue
        syllables = []
        for sounds, stress in re.findall(r"\(\(([a-z ]+)\) (\d)\)", match[2]):
            marked = [sound.upper() + (stress if sound[0] in "aeiou" else "") for sound in sounds.split()]
            syllables.append(" ".join(marked))
        answer = f"{match[1]}: /{' - '.join(syllables)}/"
        yield Example(match[1], ask(match[1], "phones", ("How do you say {}?",)), answer)


BUILDERS: dict[str, Callable[[Path], Iterator[Example]]] = {
    "devil": devil,
    "jargon": jargon,
    "kjv": verses,
    "phones": phones,
    "thesaurus": thesaurus,
    "wordnet": glosses,
}


def split(name: str, data: Path, train_max: int) -> tuple[list[Example], list[Example]]:
    """(training, held out) of a tenant: disjoint by key, in an order that depends on the keys alone."""
    unique = {example.key: example for example in BUILDERS[name](data)}
    wanted = [item for item in unique.values() if not _UNWANTED.search(f"{item.prompt} {item.response}")]
    ordered = sorted(wanted, key=lambda item: draw(f"order {name} {item.key}"))
    share = max(min(0.12, 2.0 * HELDOUT_MAX / len(ordered)), 110 / len(ordered))
    heldout = [item for item in ordered if draw(f"split {item.key}") < share][:HELDOUT_MAX]
    train = [item for item in ordered if draw(f"split {item.key}") >= share][:train_max]
    pairs = {(item.prompt, item.response) for item in train}
    assert not {item.key for item in train} & {item.key for item in heldout}, "a key is on both sides"
    assert not any((item.prompt, item.response) in pairs for item in heldout), "a held-out example is trained on"
    return train, heldout


def main() -> None:
    parser = argparse.ArgumentParser(description="Fetch the training texts and show what each tenant learns.")
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder for the unpacked packages")
    arguments = parser.parse_args()
    from rich.console import Console

    console = Console()
    for name in BUILDERS:
        train, heldout = split(name, arguments.data, 10**9)
        console.print(f"[bold]{name}[/]: {len(train)} to train on, {len(heldout)} held out")
        for item in train[:5]:
            console.print(f"  {item.prompt!r}\n    {item.response!r}", markup=False)


if __name__ == "__main__":
    main()
