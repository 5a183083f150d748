"""Asks a lorad's /health: exit code 0 if tokens can be made, else 1. For containers and service managers.

Only for telling: a lorad whose engine has died starts another one by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.request


def main() -> int:
    """Prints the status."""
    parser = argparse.ArgumentParser(description="Whether a lorad can make tokens.", allow_abbrev=False)
    parser.add_argument("--url", default=f"http://127.0.0.1:{os.environ.get('LORAD_PORT', '8000')}/health")
    parser.add_argument("--timeout", type=float, default=4.0, help="seconds (4)")
    arguments = parser.parse_args()
    code, status = ask(arguments.url, arguments.timeout)
    sys.stdout.write(f"{status}\n")
    return 0 if code == 200 else 1


def ask(url: str, timeout: float) -> tuple[int, str]:
    """The status code (0: no answer) and what it says."""
    # An environment's proxy isn't for this.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as answer:
            return answer.status, _status(answer.read(4096))
    except urllib.error.HTTPError as error:
        return error.code, _status(error.read(4096))
    except OSError as error:
        return 0, f"no answer: {error}"


def _status(body: bytes) -> str:
    try:
        return str(json.loads(body)["status"])
    except (ValueError, KeyError, TypeError):
        return "not lorad's answer"


if __name__ == "__main__":
    raise SystemExit(main())
