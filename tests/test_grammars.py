"""Answers that follow a grammar: every one does, whatever else is in its batch, and nobody else notices."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from lorad import Engine, Request
from lorad.errors import InvalidRequest
from lorad.grammars.build import of_grammar, of_rule, regex_rule, schema_rule
from oracle import Oracle
from tiny import EOS
from tiny_engine import finish, make

TOKENS = 120
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,8}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
DATE = r"\d{4}-\d\d-\d\d"


def person() -> str:
    return of_rule(schema_rule(SCHEMA, "x", whitespace=None))


def follows(text: str) -> bool:
    """What SCHEMA says, without a library."""
    found = json.loads(text)
    return (
        list(found) == ["name", "age", "tags"]
        and re.fullmatch("[a-z]{1,8}", found["name"]) is not None
        and type(found["age"]) is int
        and 0 <= found["age"] <= 150
        and len(found["tags"]) <= 2
        and set(found["tags"]) <= {"red", "blue"}
    )


def mix(engine: Engine, dice: random.Random) -> dict[str, list[Request]]:
    found: dict[str, list[Request]] = {"person": [], "date": [], "free": []}
    for index in range(15):
        kind = ("person", "date", "free")[index % 3]
        more: dict[str, Any] = {"stop_token_ids": ()} if kind == "free" else {}
        more |= {"person": {"grammar": person()}, "date": {"grammar": of_rule(regex_rule(DATE, "x"))}}.get(kind, {})
        asked = {"temperature": dice.choice([0.0, 1.0]), "seed": index, "max_tokens": TOKENS, "logprobs": 2}
        prompt = [dice.randrange(256) for _ in range(dice.randint(1, 60))]
        found[kind].append(engine.add(prompt, dice.choice(["", "a"]), **asked, **more))
    finish(engine)
    return found


def right(found: dict[str, list[Request]]) -> None:
    assert {request.finish for request in found["person"] + found["date"]} == {"stop"}
    assert all(follows(request.text) for request in found["person"])
    assert all(re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", request.text) for request in found["date"])
    assert all(len(request.tokens) == TOKENS for request in found["free"])


@pytest.mark.parametrize("seed", range(3))
def test_mixed_batches_follow_their_grammars(engine: Engine, seed: int) -> None:
    right(mix(engine, random.Random(seed)))
    assert not engine.worker.sampler._matchers, "what has ended is forgotten"


def test_preempted_answers_go_on_in_their_grammars(base: Path, adapter: Path) -> None:
    engine = make(base, adapter, kv_cache_memory_bytes=260_000, enable_prefix_caching=False)
    right(mix(engine, random.Random(5)))
    assert engine.stats().preemptions > 0, "the pool was meant to be too small"
    engine.close()


def test_the_best_that_the_grammar_allows_is_taken(engine: Engine, oracle: Oracle) -> None:
    """Teacher-forced: at each place the reference's best token among the grammar's, which here are known by hand."""
    grammar = of_rule(regex_rule("[a-f]{12}", "x"))
    asked = engine.add([9, 8, 7], max_tokens=TOKENS, grammar=grammar, logprobs=0)
    finish(engine)
    tokenizer = engine.text_model.tokenizer
    allowed = [token for token in range(256) if tokenizer.text_bytes(token) in set(map(str.encode, "abcdef"))]
    reference = oracle.logprobs([9, 8, 7, *asked.tokens])[2:]
    assert len(asked.tokens) == 12 and asked.finish == "stop"
    for place, token in enumerate(asked.tokens):
        assert token == allowed[int(reference[place, allowed].argmax())]
    # Log-probabilities are the model's own, as if nothing were masked.
    told = torch.tensor(asked.logprobs)
    assert float((reference[torch.arange(12), asked.tokens] - told).abs().max()) < 1e-3


def test_others_get_the_same_bits(base: Path, adapter: Path) -> None:
    answers = []
    for more in ({"grammar": person()}, {}):
        engine = make(base, adapter, deterministic=True)
        plain = [engine.add([9, 8, i], "a", max_tokens=40, stop_token_ids=(), logprobs=5) for i in (1, 2)]
        drawn = engine.add([5], max_tokens=40, stop_token_ids=(), logprobs=0, temperature=1.0, seed=4)
        for _ in range(3):
            engine.add([4, 4], max_tokens=40, stop_token_ids=(), **more)
        finish(engine)
        answers.append([(request.tokens, request.logprobs) for request in (*plain, drawn)])
        engine.close()
    assert answers[0] == answers[1]


def test_a_matcher_that_fails_fails_its_own_request(engine: Engine) -> None:
    hurt, well = (engine.add([5, i], max_tokens=TOKENS, grammar=person()) for i in (1, 2))
    free = engine.add([5, 3], max_tokens=20, stop_token_ids=())
    for _ in range(3):
        engine.step()
    engine.worker.sampler._matchers[hurt.id].took(EOS)
    finish(engine)
    assert hurt.finish == "error" and "could not follow its grammar" in (hurt.error or "")
    assert follows(well.text) and len(free.tokens) == 20


def test_a_library_that_fails_fails_what_follows_a_grammar(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    hurt = engine.add([5, 1], max_tokens=TOKENS, grammar=person())
    free = engine.add([5, 3], max_tokens=20, stop_token_ids=())
    with monkeypatch.context() as patch:
        patch.setattr(engine.worker.sampler._masks, "_compute", lambda matchers, words: 1 / 0)
        engine.step()
    finish(engine)
    well = engine.add([5, 1], max_tokens=TOKENS, grammar=person())
    finish(engine)
    assert hurt.finish == "error" and len(free.tokens) == 20 and follows(well.text)


def test_too_few_tokens_end_by_length(engine: Engine) -> None:
    asked = engine.add([5, 6], max_tokens=5, grammar=person())
    finish(engine)
    assert asked.finish == "length" and asked.text.startswith('{"nam') and len(asked.tokens) == 5


def test_the_end_of_a_grammar_is_the_end(engine: Engine) -> None:
    """Whatever `stop_token_ids` says, and before `min_tokens`; where it may go on, it does."""
    ended = engine.add([5, 6], max_tokens=30, grammar=of_rule('"ab"'), stop_token_ids=(), min_tokens=9)
    longer = engine.add([5, 6], max_tokens=30, grammar=of_rule("/a+/"), min_tokens=9, logit_bias={EOS: 100})
    finish(engine)
    assert (ended.finish, ended.text) == ("stop", "ab")
    assert (longer.finish, longer.text) == ("stop", "a" * 9)


def test_a_grammar_that_cant_be_compiled_is_refused(engine: Engine) -> None:
    for grammar in ("nonsense", of_rule("/(/"), "{}", "start: <nobody>"):
        with pytest.raises(InvalidRequest) as refusal:
            engine.add([5], max_tokens=4, grammar=grammar)
        assert (refusal.value.code, refusal.value.param) == ("grammar", "grammar")
    with pytest.raises(InvalidRequest, match="grammar: a text"):
        engine.add([5], max_tokens=4, grammar=5)
    assert not engine.has_work()


def test_the_last_grammars_are_kept(engine: Engine) -> None:
    for index in range(40):
        engine.follow(of_rule(f'"{index}"'))
    kept = engine._grammars._kept
    assert len(kept) == 32 and (0, of_rule('"39"')) in kept and (0, of_rule('"7"')) not in kept
    first, second = engine.follow(person()), engine.follow(person())
    first.matcher.consume_token(ord("{"))
    assert first.matcher is not second.matcher


def test_a_grammar_that_another_tenant_has_used_is_compiled_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, compile = [], engine._grammars._compile

    def noted(grammar: str) -> Any:
        compiled.append(grammar)
        return compile(grammar)

    monkeypatch.setattr(engine._grammars, "_compile", noted)
    grammar = of_rule('"nobody else knows"')
    for tenant in (1, 1, 2, 2, 1):
        engine.follow(grammar, tenant=tenant)
    assert compiled == [grammar] * 2


def test_a_grammar_without_an_answer_tells_no_more_than_that(engine: Engine) -> None:
    for grammar in ("start: start", r"start: /[^\s\S]/"):
        with pytest.raises(InvalidRequest) as refusal:
            engine.follow(of_grammar(grammar, "x"))
        assert refusal.value.code == "grammar" and "state" not in refusal.value.message
        assert len(refusal.value.message) < 100


def refused(make: Any, *given: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refusal:
        make(*given, "here.schema")
    assert refusal.value.param == "here" and str(refusal.value).startswith("here.schema")
    return refusal.value


@pytest.mark.parametrize(
    ("schema", "place", "why"),
    [
        ({"type": "strin"}, ": ", "Invalid type"),
        ({"properties": {"a": {"properties": {"b": {"pattern": "("}}}}}, ".properties.a.properties.b: ", "unclosed"),
        ({"properties": {"a": {"items": {"not": {}}}}}, ".properties.a.items: ", "not"),
        ({"anyOf": [{"type": "string"}, {"format": "odd"}]}, ".anyOf[1]: ", "odd"),
        ({"$defs": {"q": {"items": {"not": {}}}}, "$ref": "#/$defs/q"}, ".$defs.q.items: ", "not"),
        ({"properties": {"a": {"$ref": "#/$defs/no"}}}, ".properties.a: ", "/$defs/no"),
        ({"$ref": "https://example.org/x"}, ": ", "example.org"),
        ({"enum": ["ok", "x" * 4097]}, ".enum[1]: ", "at most 4096 characters, got 4097"),
        ({"properties": {"x" * 4097: {}}}, ".properties: ", "at most 4096 characters"),
        ({"description": "x" * 66000}, ": ", "at most 65536 characters"),
        ({"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(4)]} for i in range(12)]}, ": ", "too large"),
        ("x", ": ", "an object, got str"),
    ],
)
def test_a_schema_that_cant_be_followed_is_refused_by_its_place(schema: Any, place: str, why: str) -> None:
    error = refused(schema_rule, schema)
    assert str(error).startswith("here.schema" + place) and why in str(error) and len(str(error)) < 500
    assert error.code in ("json_schema", "field_length")


def test_a_schema_nested_without_end_is_refused() -> None:
    for depth in (300, 100_000):
        schema: dict[str, Any] = {"type": "string"}
        for _ in range(depth):
            schema = {"type": "array", "items": schema}
        assert refused(schema_rule, schema).code in ("json_schema", "field_length")


def test_descriptions_may_be_long() -> None:
    assert schema_rule({"properties": {"a": {"description": "x" * 9000}}}, "x").startswith("%json ")


@pytest.mark.parametrize("expression", ["(", "(?=x)a", r"\1", "[z-a]", "a" * 4097])
def test_an_expression_that_cant_be_followed_is_refused(expression: str) -> None:
    assert refused(regex_rule, expression).code in ("regex", "field_length")


@pytest.mark.parametrize("grammar", ["start: foo", "nonsense", "", "start: /a/ <nobody>", "x" * 16385])
def test_a_grammar_is_refused_where_it_is_made_or_compiled(engine: Engine, grammar: str) -> None:
    with pytest.raises(InvalidRequest):
        engine.follow(of_grammar(grammar, "here.schema"))


def test_gbnf_is_a_grammar_too(engine: Engine) -> None:
    asked = engine.add([5], max_tokens=9, grammar=of_grammar('root ::= "a" | "b" root', "x"), logit_bias={ord("b"): 9})
    finish(engine)
    assert re.fullmatch("b*a?", asked.text)
