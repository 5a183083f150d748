"""`Remote`: a running server's control endpoints, as the command line asks them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

from lorad.errors import KINDS, LoradError, Unavailable

SECONDS = 30.0
"""How long an answer may take, beyond what was asked to be waited for."""


HINTS = dict.fromkeys(("missing_api_key", "invalid_api_key"), "; --control-key or LORAD_CONTROL_KEY gives it")
"""What a command's user can do about a refusal whose text is for who writes headers, by code."""


class Remote:
    """Blocking calls; refusals are raised as the server's own."""

    def __init__(self, address: str, key: str) -> None:
        """`address` as http://127.0.0.1:8000."""
        self.address = address.rstrip("/")
        self._key = key

    def call(self, method: str, path: str, body: dict[str, Any] | None = None, *, wait_seconds: float = 0.0) -> Any:
        """The answer's JSON."""
        headers = {"Authorization": f"Bearer {self._key}"}
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        try:
            request = urllib.request.Request(self.address + path, data, headers, method=method)
            with urllib.request.urlopen(request, timeout=SECONDS + wait_seconds) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            raise _refusal(error.status, error.read()) from None
        except (OSError, ValueError) as error:
            raise Unavailable(f"{self.address} doesn't answer: {error}", code="server_unreachable") from None
        return json.loads(content) if content else None

    def adapter(self, name: str) -> str:
        """The path of an adapter."""
        return f"/v1/lora_adapters/{quote(name, safe='/')}"


def _refusal(status: int | None, body: bytes) -> LoradError:
    try:
        error = json.loads(body)["error"]
        kind = next((kind for kind in KINDS.values() if kind.status == status), LoradError)
        hint = HINTS.get(error["code"], "")
        return kind(error["message"] + hint, code=error["code"], param=error["param"])
    except (ValueError, KeyError, TypeError):
        return Unavailable(f"the server answered {status}, and not in lorad's form", code="server_answer")
