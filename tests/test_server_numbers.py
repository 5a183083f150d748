"""Numbers and texts of a body that no field can hold: the refusal names field and limit."""

from __future__ import annotations

import pytest

from lorad.errors import InvalidRequest
from lorad.server.decode import decode
from lorad.server.fields import RANGES
from lorad.server.requests import CompletionRequest, ask_completion

LONG = "9" * 400


def refusal(field: str) -> InvalidRequest:
    prompt = "" if field.startswith('"prompt"') else '"prompt": "x", '
    with pytest.raises(InvalidRequest) as refused:
        body = decode(f'{{"model": "m", {prompt}{field}}}'.encode(), CompletionRequest, {"suffix": (None, "")})
        ask_completion(body, 100, ())
    assert len(refused.value.message) < 200
    return refused.value


@pytest.mark.parametrize("value", [LONG, "-" + LONG, "1e999", "9" * 5000], ids=lambda value: value[:5])
@pytest.mark.parametrize(
    "field", ["temperature", "top_p", "min_p", "top_k", "seed", "n", "max_tokens", "logprobs", "min_tokens"]
)
def test_a_number_too_large_to_be_held_names_its_limits(field: str, value: str) -> None:
    refused = refusal(f'"{field}": {value}')
    assert (refused.code, refused.param) == ("field_range", field)
    assert (
        refused.message.startswith(f"{field}: ") and f"at most {RANGES[field].high}, got {value[:5]}" in refused.message
    )


def test_large_token_ids_are_shown_shortly() -> None:
    for field in ("prompt", "stop_token_ids"):
        assert refusal(f'"{field}": [{LONG}]').code == "token_id"
    assert refusal('"suffix": 1e999').code == "unsupported_field"


@pytest.mark.parametrize("text", [r"\ud800", r"a\ud800b", r"\udc00", r"\ud800\u0041"])
def test_half_of_a_surrogate_pair_is_named(text: str) -> None:
    refused = refusal(f'"prompt": "{text}"')
    assert refused.code == "body_json" and "is half of a surrogate pair" in refused.message
    assert text[text.index("\\ud") :][:6] in refused.message


def test_what_is_cut_is_still_told() -> None:
    with pytest.raises(InvalidRequest, match="truncated"):
        decode(b'{"prompt": "\\ud83d\\ude00', CompletionRequest, {})
