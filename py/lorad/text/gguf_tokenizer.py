"""A tokenizer from a GGUF file's metadata.

Only what has been checked against the model's own tokenizer is taken: `tokenizer.ggml.pre` names the rule that cuts a
text into words before merging, and a wrong rule gives other ids without any error.
"""

from __future__ import annotations

from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from lorad.errors import ModelRejected
from lorad.text.tokenizer import Tokenizer

CONTROL, USER_DEFINED = 3, 4

END_NAMES = frozenset(
    {"<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "</s>"}
)
"""Control tokens that end a text whether or not the file says so, as llama.cpp treats them."""

_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def tokenizer_from_gguf(metadata: dict[str, Any]) -> Tokenizer:
    """Builds the tokenizer that `tokenizer.ggml.*` describes, or says what about it isn't known."""
    ggml = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    if ggml.get("model") != "gpt2":
        raise ModelRejected(
            f"tokenizer.ggml.model is {ggml.get('model')!r}; known is 'gpt2' (byte-level BPE)", code="tokenizer_model"
        )
    if ggml.get("pre") not in _PRE_TOKENIZERS:
        known = ", ".join(map(repr, sorted(_PRE_TOKENIZERS)))
        raise ModelRejected(f"tokenizer.ggml.pre is {ggml.get('pre')!r}; known: {known}", code="tokenizer_pre")
    tokens, merges, kinds = ggml.get("tokens", []), ggml.get("merges", []), ggml.get("token_type", [])
    if not tokens or not merges or len(kinds) not in (0, len(tokens)):
        raise ModelRejected("the file's vocabulary, merges or token types are missing", code="tokenizer_vocab")

    core = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[_pair(merge) for merge in merges],
        )
    )
    core.pre_tokenizer = _PRE_TOKENIZERS[ggml["pre"]]()
    core.decoder = decoders.ByteLevel()
    controls = [tokens[i] for i, kind in enumerate(kinds) if kind == CONTROL]
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in controls])
    core.add_tokens(
        [AddedToken(tokens[i], special=False, normalized=False) for i, kind in enumerate(kinds) if kind == USER_DEFINED]
    )

    def named(key: str) -> str:
        index = ggml.get(key)
        return tokens[index] if isinstance(index, int) and 0 <= index < len(tokens) else ""

    bos, eos = named("bos_token_id"), named("eos_token_id")
    before = [bos] if ggml.get("add_bos_token") and bos else []
    after = [eos] if ggml.get("add_eos_token") and eos else []
    if before or after:
        core.post_processor = processors.TemplateProcessing(
            single=" ".join([*before, "$A", *after]),
            special_tokens=[(token, tokens.index(token)) for token in {*before, *after}],
        )
    ends = {ggml[key] for key in _END_KEYS if key in ggml}
    ends |= {index for index, kind in enumerate(kinds) if kind == CONTROL and tokens[index] in END_NAMES}
    return Tokenizer(core, end_ids=ends, bos_token=bos, eos_token=eos)


def _pair(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not space:
        raise ModelRejected(f"a merge without a space: {merge!r}", code="tokenizer_vocab")
    return left, right


def _smollm() -> Any:
    """Digits stand one by one, everything else is cut as in GPT-2."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


_PRE_TOKENIZERS = {"smollm": _smollm}
