"""Requests that schemathesis makes of `openapi.json`, at a scripted server: `make fuzz-http`, and briefly a test.

Right ones and wrong ones, of every route. None may be answered by a fault of the server's, none may hang, and after
each the server must be well.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis import GenerationMode

from controlling import KEY, controlling

HANG_SECONDS = 30
"""Of one request. The slowest real one takes a fraction of a second."""
HEADERS = {"Authorization": f"Bearer {KEY}"}
POSITIVE, NEGATIVE = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
NAMES = ["base", "devil", "base:devil", "alias", "nobody"]


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server on a thread of its own: the base, an adapter, an alias, all control endpoints."""
    started: list[str] = []
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def main() -> None:
        async with controlling(folder, combined_max=2) as control:
            await control.load("devil", control.write("devil", "one"))
            await control.ask("PUT", "/v1/lora_aliases/alias", target="devil")
            started.append(control.client.address)
            ready.set()
            await stop.wait()

    def run() -> None:
        try:
            loop.run_until_complete(main())
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        yield started[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


ENTANGLED = {
    *("adapters", "stream_options", "best_of", "min_tokens", "tools", "tool_choice", "top_logprobs", "logit_bias"),
    *("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    *("stop_token_ids", "max_completion_tokens", "tool_calls", "tool_call_id", "add_generation_prompt", "stop"),
    *("continue_final_message", "chat_template_kwargs", "echo"),
}
"""Fields that want others or exclude them, which a schema doesn't say: few requests that have them are right."""


def schema_of(address: str, *, plain: bool = False) -> Any:
    """The server's document, with names that are there, so that right requests are answered and not 404. `plain`: of
    bodies without entangled fields, so that they are answered by tokens."""
    document = requests.get(f"{address}/openapi.json", timeout=HANG_SECONDS).json()
    del document["paths"]["/v1/inventory"]  # a stream without an end
    schemas, names = document["components"]["schemas"], {"enum": NAMES}
    for kind in ("ChatRequest", "CompletionRequest", "TokenizeBody", "DetokenizeBody"):
        schemas[kind]["properties"]["model"] = names
    schemas["WeightedAdapter"]["properties"]["name"] = names
    if plain:
        for schema in schemas.values():
            kept = {name: one for name, one in schema["properties"].items() if name not in ENTANGLED}
            schema["properties"] = kept
        schemas["Message"]["properties"]["content"] = {"type": "string"}
        schemas["Message"]["required"] = ["role", "content"]
        messages = schemas["ChatRequest"]["properties"]["messages"] | {"minItems": 1}
        for kind in ("ChatRequest", "TokenizeBody"):
            schemas[kind]["properties"]["messages"] = messages
        schemas["TokenizeBody"]["required"] = ["messages"]
        schemas["CompletionRequest"]["properties"]["prompt"] = {"type": "string", "minLength": 1}
        schemas["TokenizeBody"]["properties"]["prompt"] = {"type": "null"}
        schemas["DetokenizeBody"]["properties"]["tokens"]["items"] = {"type": "integer", "minimum": 0, "maximum": 268}
    for one in document["paths"].values():
        for operation in one.values():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path":
                    parameter["schema"] = {"anyOf": [parameter["schema"], names]}
    return schemathesis.openapi.from_dict(document)


def fuzz(address: str, *, examples: int, seeded: bool) -> Counter[int]:
    """So many requests of each route, right, plain and wrong; how often each status was answered. `seeded`: the same
    ones each time."""
    statuses: Counter[int] = Counter()
    with requests.Session() as session:
        for plain, mode in ((False, POSITIVE), (True, POSITIVE), (False, NEGATIVE)):
            for found in schema_of(address, plain=plain).get_all_operations():
                operation = found.ok()
                if len(operation.body) or (not plain and (mode is POSITIVE or _has_fields(operation))):
                    _fuzz(address, session, operation, mode, examples, seeded, statuses)
    return statuses


def _fuzz(
    address: str,
    session: requests.Session,
    operation: Any,
    mode: GenerationMode,
    examples: int,
    seeded: bool,
    statuses: Counter[int],
) -> None:
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=seeded,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        answer = case.call(base_url=address, session=session, headers=HEADERS, timeout=HANG_SECONDS)
        statuses[answer.status_code] += 1
        assert answer.status_code < 500, (case.as_curl_command(), answer.text)
        if answer.status_code >= 400 and case.method != "HEAD":
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}, case.as_curl_command()
        assert session.get(f"{address}/health", timeout=HANG_SECONDS).json() == {"status": "ready"}

    ask()
    wanted = {"model": "base", "prompt": "hi", "max_tokens": 9}
    alive = session.post(f"{address}/v1/completions", json=wanted, timeout=HANG_SECONDS)
    assert alive.json()["choices"][0]["text"] == "hi", operation.label


def _has_fields(operation: Any) -> bool:
    """Whether a request of this route can be wrong."""
    return bool(len(operation.body) or len(operation.query) or len(operation.path_parameters))


def main() -> None:
    """Until something is found, or all is done, or rounds of it have taken as long as they were to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=2000, help="requests of each route, right ones and wrong ones")
    parser.add_argument("--minutes", type=float, default=0, help="further rounds until then")
    parser.add_argument("--seeded", action="store_true", help="the same requests each time")
    arguments = parser.parse_args()
    ends = time.monotonic() + 60 * arguments.minutes
    statuses: Counter[int] = Counter()
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as address:
        while True:
            statuses += fuzz(address, examples=arguments.examples, seeded=arguments.seeded)
            told = f"{statuses.total()} requests: {dict(sorted(statuses.items()))}"
            print(told, flush=True)  # noqa: T201
            if time.monotonic() >= ends:
                return


if __name__ == "__main__":
    main()
