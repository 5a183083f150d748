"""Requests of both endpoints that are fine, and what a refusal of one that isn't must be like."""

from __future__ import annotations

import re
from typing import Any

import pytest

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"model": "base", "messages": MESSAGES, "max_tokens": 5},
    COMPLETIONS: {"model": "base", "prompt": "hi", "max_tokens": 5},
}
BOTH = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


def refused(answer: tuple[int, Any], field: str = "", status: int = 400) -> dict[str, Any]:
    """An answer in OpenAI's error form that names the field."""
    got, body = answer
    assert got == status, body
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    assert error["type"] and error["code"]
    if field:
        assert field in error["message"], error
        assert error["param"] is not None and re.split(r"[.\[]", error["param"])[0] == re.split(r"[.\[]", field)[0], (
            error
        )
    assert "Traceback" not in error["message"] and "/secret" not in error["message"]
    return error
