"""A tokenizer from a GGUF file's metadata.

Only what has been checked against the model's own tokenizer is taken: `tokenizer.ggml.pre` names the rule that cuts a
text into words before merging, and a wrong rule gives other ids without any error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from lorad.errors import ModelRejected
from lorad.models.fields import shown
from lorad.models.gguf_keys import Keys, end_ids
from lorad.text.tokenizer import Tokenizer

CONTROL, USER_DEFINED = 3, 4

END_NAMES = frozenset(
    {"<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "</s>"}
)
"""Control tokens that end a text whether or not the file says so, as llama.cpp treats them."""


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Builds the tokenizer that `tokenizer.ggml.*` describes, or says what about it isn't known."""
    ggml = Keys(metadata, "tokenizer.ggml.")
    model, pre = ggml.text("model", ""), ggml.text("pre", "")
    if model != "gpt2":
        raise ModelRejected(
            f"tokenizer.ggml.model is {shown(model)}; known is 'gpt2' (byte-level BPE)", code="tokenizer_model"
        )
    if pre not in _PRE_TOKENIZERS:
        known = ", ".join(map(repr, sorted(_PRE_TOKENIZERS)))
        raise ModelRejected(f"tokenizer.ggml.pre is {shown(pre)}; known: {known}", code="tokenizer_pre")
    tokens, merges, kinds = ggml.texts("tokens", []), ggml.texts("merges", []), ggml.integers("token_type", [])
    if not tokens or not merges or len(kinds) not in (0, len(tokens)):
        raise ModelRejected("the file's vocabulary, merges or token types are missing", code="tokenizer_vocab")
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) < len(tokens):
        twice = next(token for index, token in enumerate(tokens) if vocab[token] != index)
        raise ModelRejected(f"the token {shown(twice)} is there twice", code="tokenizer_vocab")

    def named(key: str) -> str:
        ids = ggml.token_ids(key)[:1]
        for index in ids:
            if not 0 <= index < len(tokens):
                raise ModelRejected(
                    f"tokenizer.ggml.{key} is {index}, the vocabulary has {len(tokens)}", code="tokenizer_vocab"
                )
        return "".join(tokens[index] for index in ids)

    bos, eos = named("bos_token_id"), named("eos_token_id")
    before = [bos] if ggml.flag("add_bos_token", False) and bos else []
    after = [eos] if ggml.flag("add_eos_token", False) and eos else []
    controls = [token for token, kind in zip(tokens, kinds, strict=False) if kind == CONTROL]
    users = [token for token, kind in zip(tokens, kinds, strict=False) if kind == USER_DEFINED]
    try:
        core = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[_pair(merge) for merge in merges]))
        core.pre_tokenizer = _PRE_TOKENIZERS[pre]()
        core.decoder = decoders.ByteLevel()
        core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in controls])
        core.add_tokens([AddedToken(token, special=False, normalized=False) for token in users])
        if before or after:
            core.post_processor = processors.TemplateProcessing(
                single=" ".join([*before, "$A", *after]),
                special_tokens=[(token, vocab[token]) for token in {*before, *after}],
            )
    except ModelRejected:
        raise
    except Exception as error:
        # `tokenizers` raises a bare Exception, for a merge of tokens that aren't there and whatever else is wrong.
        raise ModelRejected(f"the file's tokenizer can't be built: {error}", code="tokenizer_vocab") from None
    ends = {*end_ids(ggml), *(vocab[token] for token in controls if token in END_NAMES)}
    return Tokenizer(core, end_ids=ends, bos_token=bos, eos_token=eos)


def _pair(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not space:
        raise ModelRejected(f"a merge without a space: {shown(merge)}", code="tokenizer_vocab")
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
