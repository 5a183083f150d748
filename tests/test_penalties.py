"""Bias, penalties and `min_tokens` in mixed batches, against transformers' own processors on the reference's logits.

The reference is teacher-forced: it reads prompt and answer in one pass, transformers' processors (or the two lines that
define a penalty they lack) change its logits at each place, and the best token must be the engine's.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from lorad import Engine, Request
from lorad.errors import InvalidRequest
from oracle import Oracle
from tiny import VOCAB
from tiny_engine import finish, make

TOKENS = 24
CLOSE = 1e-3
"""Where the reference's two best are nearer than this, either is right."""


def changed(logits: torch.Tensor, prompt: list[int], made: list[int], asked: dict[str, Any]) -> torch.Tensor:
    """The reference's logits [vocab] after `made`, by transformers where it has a processor, in vLLM's order."""
    ids = torch.tensor([[*prompt, *made]])
    parts = LogitsProcessorList()
    if bias := asked.get("logit_bias"):
        parts.append(SequenceBiasLogitsProcessor({(token,): float(value) for token, value in bias.items()}))
    if least := asked.get("min_tokens"):
        stops = list(asked["stop_token_ids"])
        parts.append(MinNewTokensLengthLogitsProcessor(len(prompt), least, stops, device="cpu"))
    if repetition := asked.get("repetition_penalty"):
        parts.append(RepetitionPenaltyLogitsProcessor(repetition))
    out = parts(ids, logits[None].clone())[0]
    times = torch.bincount(torch.tensor(made, dtype=torch.long), minlength=len(logits))
    out -= asked.get("frequency_penalty", 0.0) * times
    return out - asked.get("presence_penalty", 0.0) * (times > 0)


def agrees(oracle: Oracle, adapter: Path | None, request: Request, asked: dict[str, Any]) -> None:
    prompt, made = request.prompt, request.tokens
    # The log-softmax differs from the logits by a constant, which a penalty that multiplies would see.
    with torch.no_grad(), oracle._using(adapter):
        logits = oracle._model(input_ids=torch.tensor([[*prompt, *made]])).logits[0].float()
    for place, token in enumerate(made):
        wanted = changed(logits[len(prompt) - 1 + place], prompt, made[:place], asked)
        assert float(wanted.max() - wanted[token]) < CLOSE, (asked, place)
    if request.finish == "stop":
        wanted = changed(logits[-1], prompt, made, asked)
        assert int(wanted.argmax()) in asked["stop_token_ids"]


def random_wishes(dice: random.Random) -> dict[str, Any]:
    wishes: dict[str, Any] = {"stop_token_ids": tuple(dice.sample(range(VOCAB), 60))}
    if dice.random() < 0.5:
        wishes["logit_bias"] = {
            dice.randrange(VOCAB): dice.choice([-100, -3.5, 2, 5]) for _ in range(dice.randint(1, 90))
        }
    if dice.random() < 0.5:
        wishes["presence_penalty"] = dice.choice([-2.0, 0.7, 2.0])
    if dice.random() < 0.5:
        wishes["frequency_penalty"] = dice.choice([-1.0, 0.4, 2.0])
    if dice.random() < 0.5:
        wishes["repetition_penalty"] = dice.choice([0.5, 1.1, 2.0])
    if dice.random() < 0.7:
        wishes["min_tokens"] = dice.randint(1, TOKENS)
    return wishes


def random_mix(engine: Engine, dice: random.Random) -> list[tuple[Request, dict[str, Any]]]:
    found = []
    for index in range(12):
        wishes = random_wishes(dice) if index % 4 else {"stop_token_ids": ()}
        prompt = [dice.randrange(VOCAB) for _ in range(dice.randint(1, 60))]
        model = dice.choice(["", "a"])
        found.append((engine.add(prompt, model, max_tokens=TOKENS, logprobs=0, **wishes), wishes))
    finish(engine)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_mixed_batches_agree_with_transformers(engine: Engine, oracle: Oracle, adapter: Path, seed: int) -> None:
    ends = set()
    for request, wishes in random_mix(engine, random.Random(seed)):
        agrees(oracle, adapter if request.model else None, request, wishes)
        assert len(request.tokens) >= wishes.get("min_tokens", 0)
        ends.add(request.finish)
    assert ends == {"stop", "length"}


def test_preempted_requests_keep_their_counts(base: Path, adapter: Path, oracle: Oracle) -> None:
    """A pool that holds a part of the requests: rows are thrown out and come back in the middle of their answers."""
    engine = make(base, adapter, kv_cache_memory_bytes=190_000, enable_prefix_caching=False)
    for request, wishes in random_mix(engine, random.Random(11)):
        agrees(oracle, adapter if request.model else None, request, wishes)
    assert engine.stats().preemptions > 0, "the pool was meant to be too small"
    engine.close()


def test_others_get_the_same_bits(base: Path, adapter: Path) -> None:
    """Rows without edits beside rows with all of them, and beside the same rows without."""
    wishes = {"logit_bias": {3: 5.0}, "presence_penalty": 1.0, "frequency_penalty": 1.0, "repetition_penalty": 1.3}
    answers = []
    for more in (wishes, {}):
        engine = make(base, adapter, deterministic=True)
        plain = [
            engine.add([9, 8, 7, i], m, max_tokens=TOKENS, stop_token_ids=(), logprobs=5)
            for i in (1, 2)
            for m in ("", "a")
        ]
        drawn = engine.add([5], max_tokens=TOKENS, stop_token_ids=(), logprobs=0, temperature=1.0, seed=4)
        for _ in range(3):
            engine.add([4, 4], max_tokens=TOKENS, stop_token_ids=(), **more)
        finish(engine)
        answers.append([(request.tokens, request.logprobs) for request in (*plain, drawn)])
        assert not engine.worker.sampler._edits, "what has ended is forgotten"
        engine.close()
    assert answers[0] == answers[1]


def test_an_ended_token_may_come_once_the_least_is_there(engine: Engine) -> None:
    """`min_tokens` masks end tokens and nothing else, and the bias that such a token has by itself comes back."""
    (free,) = (engine.add([5, 6], max_tokens=8, stop_token_ids=()),)
    finish(engine)
    end = free.tokens[0]
    short = engine.add([5, 6], max_tokens=8, stop_token_ids=(end,))
    long = engine.add([5, 6], max_tokens=8, stop_token_ids=(end,), min_tokens=4, logit_bias={end: 100})
    both = engine.add([5, 6], max_tokens=8, stop_token_ids=(end, 1 << 30), min_tokens=8)
    finish(engine)
    assert (short.finish, short.tokens) == ("stop", [])
    assert long.finish == "stop" and len(long.tokens) == 4 and end not in long.tokens
    assert both.finish == "length" and len(both.tokens) == 8


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("presence_penalty", 2.1, "-2 to 2"),
        ("frequency_penalty", float("nan"), "-2 to 2"),
        ("repetition_penalty", 0, "above 0"),
        ("repetition_penalty", -1, "0 to 2"),
        ("min_tokens", 3, "at most max_tokens, 2"),
        ("min_tokens", -1, "0 to "),
        ("min_tokens", 1.0, "a whole number"),
        ("logit_bias", {1: 101}, "-100.0 to 100.0"),
        ("logit_bias", {1: float("-inf")}, "-100.0 to 100.0"),
        ("logit_bias", {VOCAB: 1}, f"below {VOCAB}"),
        ("logit_bias", [1], "numbers by token id"),
    ],
)
def test_refusals(engine: Engine, field: str, value: Any, limit: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        engine.add([5, 6, 7], **{"max_tokens": 2, field: value})
    assert refusal.value.param == field and limit in str(refusal.value)
    assert not engine.has_work()


def test_the_smallest_repetition_penalty_is_a_number(engine: Engine) -> None:
    asked = engine.add([5, 6, 7], max_tokens=3, stop_token_ids=(), repetition_penalty=1e-300)
    finish(engine)
    assert asked.finish == "length"
