"""`lorad demo`: the embedded base and its real tenants, asked all at once, and served on."""

from __future__ import annotations

import asyncio
import shlex
import signal
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
from lorad.demo.tenant import Tenant, tenants
from lorad.engine import messages
from lorad.server.run import Server

QUESTION = "Define: war"
MAX_TOKENS = 64
BASE = "smollm2"


def demo(engine_config: EngineConfig, server_config: ServerConfig, *, prompt: str = "", once: bool = False) -> int:
    """Runs the demo until a stop signal (`once`: until the table is printed); gives the exit code."""
    import uvloop

    console = Console()
    fetch_base(console)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_demo(console, engine_config, server_config, prompt or QUESTION, once))


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
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)

    with _bar(console, MofNCompleteColumn()) as update:
        loaded = 0

        def on_adapter(info: messages.AdapterInfo) -> None:
            nonlocal loaded
            loaded += 1
            update(f"adapters: {info.name}", loaded, len(server_config.lora_modules))

        server = Server(
            engine_config,
            server_config,
            on_progress=lambda p: update(f"engine: {p.stage}", p.done, p.total),
            on_adapter=on_adapter,
        )
        address = await server.start()
    try:
        models = [name.partition("=")[0] for name in server_config.lora_modules]
        await show_burst(console, address, [*models, BASE], prompt, found, server_config.api_key)
        console.print(_curl(address, models[0] if models else BASE, prompt, server_config.api_key), soft_wrap=True)
        if not once:
            console.print(f"\nServing on {address}; Ctrl-C stops.", style="bold")
            await stopping.wait()
    finally:
        await server.stop()
    return 0


async def show_burst(
    console: Console, address: str, models: list[str], prompt: str, found: list[Tenant], api_key: str
) -> None:
    """Asks all `models` at once and shows the answers as they grow."""
    titles = {tenant.name: tenant.title for tenant in found} | {BASE: "the base, no adapter"}
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


def _curl(address: str, model: str, prompt: str, api_key: str) -> str:
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "{prompt}"}}], "temperature": 0}}'
    key = f" -H 'Authorization: Bearer {api_key}'" if api_key else ""
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
