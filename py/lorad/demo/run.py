"""`lorad demo`: the embedded base and its real tenants, asked all at once, and served on."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from lorad.config import EngineConfig, ServerConfig
from lorad.demo.base import embedded_base
from lorad.demo.burst import Answer, burst
from lorad.demo.table import answers_table, total_line
from lorad.demo.tenant import tenants
from lorad.engine.messages import AdapterInfo
from lorad.observe.logs import configure
from lorad.server.run import Server, StopSignals, ignore_stop_signals, server_name, stopping_line

QUESTION = "Define: war"
MAX_TOKENS = 64


def demo(engine_config: EngineConfig, server_config: ServerConfig, *, prompt: str = "", once: bool = False) -> int:
    """Runs the demo until a stop signal (`once`: until the table is printed); gives the exit code."""
    import uvloop

    configure(engine_config.log_format, engine_config.log_level, access=server_config.log_requests)
    console = Console()
    fetch_base(console)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(_demo(console, engine_config, server_config, prompt or QUESTION, once))
        finally:
            ignore_stop_signals()


def fetch_base(console: Console) -> None:
    """The embedded base's file, with a progress bar when it has to be fetched."""
    with _bar(console, DownloadColumn()) as update:
        embedded_base(lambda stage, done, total: update(f"base model: {stage}", done, total))


async def _demo(
    console: Console, engine_config: EngineConfig, server_config: ServerConfig, prompt: str, once: bool
) -> int:
    found = tenants()
    own = [f"{tenant.name}={tenant.path}" for tenant in found]
    server_config = replace(server_config, lora_modules=[*own, *server_config.lora_modules])
    with _bar(console, MofNCompleteColumn()) as update:
        loaded = 0

        def on_adapter(info: AdapterInfo) -> None:
            nonlocal loaded
            loaded += 1
            update(f"adapters: {info.name}", loaded, len(server_config.lora_modules))

        server = Server(
            engine_config,
            server_config,
            on_progress=lambda p: update(f"engine: {p.stage}", p.done, p.total),
            on_adapter=on_adapter,
        )
        stop = StopSignals(server)
        if not await stop.unless_asked(server.start()):
            return 0
    address, base, key = server.address, server_name(server), server_config.api_key
    models = [*(name.partition("=")[0] for name in server_config.lora_modules), base]
    titles = {tenant.name: tenant.title for tenant in found} | {base: "the base, no adapter"}
    try:
        if await stop.unless_asked(show_burst(console, address, models, prompt, titles, key)) and not once:
            curl = curl_line(address, models[0], prompt, key)
            console.print(curl, soft_wrap=True, markup=False, highlight=False)
            console.print(f"\nIn a browser: {address}/ui", soft_wrap=True, markup=False, highlight=False)
            console.print(f"\nServing on {address}; Ctrl-C stops.", style="bold")
            await stop.asked.wait()
    finally:
        if stop.asked.is_set():
            console.print(stopping_line(server_config), soft_wrap=True, markup=False, highlight=False)
        await server.stop()
    return 0


async def show_burst(
    console: Console, address: str, models: list[str], prompt: str, titles: dict[str, str], api_key: str
) -> None:
    """Asks all `models` at once and shows the answers as they grow."""
    answers: list[Answer] = []
    with Live(console=console, refresh_per_second=8) as live:
        await burst(
            address,
            models,
            prompt,
            max_tokens=MAX_TOKENS,
            api_key=api_key,
            answers=answers,
            on_update=lambda: live.update(answers_table(prompt, answers, titles)),
        )
        live.update(answers_table(prompt, answers, titles))
    console.print()
    console.print(total_line(answers))


def curl_line(address: str, model: str, prompt: str, api_key: str) -> str:
    """A command that asks `model` once more, to be pasted into a shell."""
    messages = [{"role": "user", "content": prompt}]
    body = json.dumps({"model": model, "messages": messages, "temperature": 0}, ensure_ascii=False)
    key = f" -H {shlex.quote(f'Authorization: Bearer {api_key}')}" if api_key else ""
    return (
        f"\nTry it yourself:\n  curl -s {address}/v1/chat/completions -H 'Content-Type: application/json'{key} "
        f"-d {shlex.quote(body)}"
    )


@contextmanager
def _bar(console: Console, count: Any) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar as a function (stage, done, total); it shows nothing until it is called."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), count, TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = None

        def update(stage: str, done: int, total: int) -> None:
            nonlocal task
            if task is None:
                task = progress.add_task(stage, total=total or None)
            progress.update(task, description=stage, completed=done, total=total or None)

        yield update
