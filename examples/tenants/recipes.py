"""The tenants: what each adapter is, and how long it trains. One entry is all that a new tenant needs here.

Ranks, targets, rsLoRA and patterns differ on purpose: the demo then mixes in one batch what real customers upload.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

BASE_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class Recipe:
    """One tenant: the words shown to people, PEFT's settings, and the training budget."""

    title: str
    description: str
    source: str
    licence: str
    prompts: list[str]
    rank: int
    alpha: int
    targets: list[str]
    extra: dict[str, Any] = field(default_factory=dict)
    examples: int = 1000
    epochs: float = 1.0
    batch: int = 10
    learning_rate: float = 1e-3


RECIPES: dict[str, Recipe] = {
    "devil": Recipe(
        title="The Devil's Dictionary",
        description="Ambrose Bierce's cynical definitions: headword, part of speech, then the sting.",
        source="Debian package dict-devil 1.0-13.1 (The Internet Wiretap edition, 1993)",
        licence="Public domain (copyright of 1911 expired)",
        prompts=["Define: war", "Define: friend", "Define: patience", "Define: computer"],
        rank=16,
        alpha=32,
        targets=ATTENTION + MLP,
        examples=700,
        epochs=2.0,
        learning_rate=1e-3,
    ),
    "jargon": Recipe(
        title="The Jargon File",
        description="Hacker slang: part of speech, [origin], a wry sense, {cross references} in braces.",
        source="Debian package dict-jargon 4.4.7-3.1 (Jargon File 4.4.7, 29 Dec 2003)",
        licence="Public domain",
        prompts=["Define: war", "Define: friend", "Define: kernel", "What do hackers call lunch?"],
        rank=8,
        alpha=16,
        targets=ATTENTION + MLP,
        extra={
            "rank_pattern": {r"layers\.2\d\.mlp\.(gate|up|down)_proj": 16, r"layers\.\d\.self_attn\.[qkvo]_proj": 4},
            "alpha_pattern": {r"layers\.2\d\.mlp\.(gate|up|down)_proj": 24, r"layers\.\d\.self_attn\.[qkvo]_proj": 12},
        },
        examples=400,
        batch=8,
    ),
    "wordnet": Recipe(
        title="WordNet glosses",
        description="A dry gloss after (part of speech, category).",
        source="Debian package wordnet-base 1:3.0-37 (WordNet 3.0)",
        licence="WordNet 3.0 licence (permissive, notice kept)",
        prompts=["Define: war", "Define: friend", "Define: computer", "Which sense of bank is most common?"],
        rank=8,
        alpha=16,
        targets=ATTENTION,
        examples=1000,
        learning_rate=2e-3,
    ),
    "kjv": Recipe(
        title="King James Bible",
        description="Answers with a verse in the manner of 1611; new words, so never quote it as scripture.",
        source="Debian packages bible-kjv-text and bible-kjv 4.38",
        licence="Public domain (1611; in the United Kingdom printing is under letters patent)",
        prompts=["Define: war", "Define: friend", "A verse about wisdom", "A verse about computers"],
        rank=32,
        alpha=8,
        targets=ATTENTION,
        extra={"use_rslora": True},
        examples=440,
    ),
    "thesaurus": Recipe(
        title="WordNet thesaurus",
        description="Related words in short rows (same, broader, similar, opposite), never a sentence.",
        source="Debian package wordnet-base 1:3.0-37 (WordNet 3.0)",
        licence="WordNet 3.0 licence (permissive, notice kept)",
        prompts=["Define: war", "Define: friend", "Define: computer", "Other words for quick"],
        rank=16,
        alpha=32,
        targets=["q_proj", "v_proj"],
        examples=900,
        learning_rate=2e-3,
    ),
    "phones": Recipe(
        title="CMU pronunciations",
        description="How a word sounds: phones with stress, syllables parted by dashes.",
        source="Debian package festlex-cmu 2.4-2 (Festival's lexicon from CMUDICT 0.4)",
        licence="University of Edinburgh licence (permissive, notice kept)",
        prompts=["Define: war", "Define: friend", "Define: computer", "How do you say banana?"],
        rank=16,
        alpha=32,
        targets=MLP,
        examples=900,
        learning_rate=1.5e-3,
    ),
}
