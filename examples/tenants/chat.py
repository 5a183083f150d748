"""The base from a GGUF file, and chats as token ids with the loss on the answer only.

All chats of one template start with the same system message. That prefix runs once per batch (`PrefixModel`), which
halves the work for short answers on a CPU, and changes no number: attention is causal.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from torch import Tensor, nn

Pair = tuple[str, str]  # prompt, response


@dataclass(frozen=True)
class Chat:
    """Token ids of one rendered chat; the answer, with its end mark, starts at `answer`."""

    ids: list[int]
    answer: int


def base_file(given: Path | None) -> Path:
    """The GGUF file of the base: the one that was given, else the embedded one, fetched if need be."""
    from lorad.demo.base import embedded_base

    return (given or embedded_base()).resolve()


def load_tokenizer(gguf: Path) -> Any:
    """The file's tokenizer, with the split that its pre-tokenizer name `smollm` means.

    transformers 5.24 converts it to plain byte-level, which differs where blanks precede digits; the original
    splits digits one by one first.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for mark in ("<|im_start|>", "<|im_end|>"):
        if len(tokenizer.encode(mark, add_special_tokens=False)) != 1:
            raise ValueError(f"{gguf.name}: {mark} is not one token")
    if tokenizer.tokenize("a  123") != ["a", "ĠĠ", "1", "2", "3"]:
        raise ValueError(f"{gguf.name}: the tokenizer doesn't split digits one by one")
    return tokenizer


def load_base(gguf: Path) -> nn.Module:
    """The base in fp32, its quantised layers dequantised: CPUs without bf16 train fastest this way."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)
    model: nn.Module = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    return model.requires_grad_(False).eval()


def render_prompt(tokenizer: Any, prompt: str) -> list[int]:
    """What a server sends to the model for a single user turn."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def render(tokenizer: Any, pair: Pair) -> Chat:
    """One chat: the prompt is encoded alone, as when serving, then the answer and its end mark."""
    prompt = render_prompt(tokenizer, pair[0])
    answer = tokenizer.encode(pair[1], add_special_tokens=False)
    return Chat([*prompt, *answer, tokenizer.eos_token_id], len(prompt))


def shared_prefix(chats: Sequence[Chat]) -> int:
    """How many ids at the start all chats share; at least one id of each prompt stays out."""
    limit = min(chat.answer for chat in chats) - 1
    first = chats[0].ids
    return next((i for i in range(limit) if any(chat.ids[i] != first[i] for chat in chats)), limit)


class PrefixModel:
    """Summed loss over answers, for a base or a PEFT model, with the shared prefix run once per batch."""

    def __init__(self, model: nn.Module, prefix: list[int]) -> None:
        causal = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.body: Any = causal.model
        self.head: Any = causal.lm_head
        self.config: Any = causal.config
        self.prefix = prefix

    def loss(self, chats: Sequence[Chat]) -> tuple[Tensor, int]:
        """(sum of negative log-likelihoods of the answers' tokens, their number)."""
        from transformers import DynamicCache

        skip = len(self.prefix)
        tails = [chat.ids[skip:] for chat in chats]
        width = max(map(len, tails)) - 1
        ids = torch.zeros(len(chats), width, dtype=torch.long)
        rows, columns, wanted = [], [], []
        for row, (chat, tail) in enumerate(zip(chats, tails, strict=True)):
            ids[row, : len(tail) - 1] = torch.tensor(tail[:-1])
            start = chat.answer - skip - 1
            rows += [row] * (len(tail) - 1 - start)
            columns += range(start, len(tail) - 1)
            wanted += tail[start + 1 :]
        cache = DynamicCache(config=self.config)
        self.body(input_ids=torch.tensor([self.prefix]), past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(len(chats))
        hidden = self.body(input_ids=ids, past_key_values=cache, use_cache=True).last_hidden_state
        logits = self.head(hidden[torch.tensor(rows), torch.tensor(columns)])
        return nn.functional.cross_entropy(logits, torch.tensor(wanted), reduction="sum"), len(wanted)
