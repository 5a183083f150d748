"""Starting a peer's server here, putting it to sleep between its turns, and loading it over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from cases import Answer, Burst, Case, prompts_of
from layout import Layout, timing_env
from machine import prioritise

HOST = "127.0.0.1"
BURST_LIMIT_S = 180.0
"""A burst that takes longer than this is given up and has no speed."""


def free_port() -> int:
    """A port on the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def process_tree(pid: int) -> list[int]:
    """A process and everything below it, parents first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError):
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for each in found:
        found.extend(children.get(each, []))
    return found


class Side(ABC):
    """One side of the comparison, started for one set of adapters; asleep except while it is measured."""

    name: str
    start_limit_s: float = 240.0
    nice = 0

    def __init__(self, layout: Layout, threads: int, log: Path) -> None:
        """Nothing is started yet."""
        self.layout = layout
        self.threads = threads
        self.log = log
        self.process: subprocess.Popen[Any] | None = None

    @abstractmethod
    def start(self, adapters: int, streams_max: int) -> None:
        """Starts the process and returns once it answers."""

    @abstractmethod
    def burst(self, case: Case, variant: int) -> Burst:
        """Sends all of a case's requests at once and waits for the last token."""

    @abstractmethod
    def settings(self) -> str:
        """Version and the settings that matter, for the table's foot."""

    def signal_all(self, number: int) -> None:
        """Sends a signal to every process of this side."""
        assert self.process is not None
        for pid in process_tree(self.process.pid):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def sleep(self) -> None:
        """Stops the processes where they are: one that spins when idle then takes nothing from the others."""
        self.signal_all(signal.SIGSTOP)

    def wake(self) -> None:
        """Lets them run again."""
        self.signal_all(signal.SIGCONT)
        time.sleep(0.3)

    def stop(self) -> None:
        """Ends the side: as Ctrl-C first, by force after 20 seconds."""
        if self.process is None:
            return
        tree = process_tree(self.process.pid)
        if self.process.poll() is None:
            self.wake()
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid in tree[1:]:
            if (Path("/proc") / str(pid)).exists():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        self.process = None

    def tail(self) -> str:
        """Last lines of the log, for the message of a failed start."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


class HttpSide(Side):
    """A side behind an HTTP server that streams server-sent events."""

    path = "/v1/completions"

    def __init__(self, layout: Layout, threads: int, log: Path) -> None:
        """Nothing is started yet."""
        super().__init__(layout, threads, log)
        self.port = free_port()

    @abstractmethod
    def command(self, adapters: int, streams_max: int) -> list[str]:
        """Command line of the server."""

    @abstractmethod
    def body(self, prompt: list[int], adapter: int | None, new_tokens: int) -> dict[str, object]:
        """JSON body of one streaming request."""

    @abstractmethod
    def read(self, event: dict[str, Any], answer: Answer) -> bool:
        """Takes in one event; true if it carried output (so that the first one's time is the TTFT)."""

    def env(self) -> dict[str, str]:
        """Environment of the server."""
        return timing_env() | {"OMP_NUM_THREADS": str(self.threads)}

    def start(self, adapters: int, streams_max: int) -> None:
        """Starts the server and waits until /health answers 200."""
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                self.command(adapters, streams_max),
                env=self.env(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        prioritise(self.process.pid, self.nice)
        try:
            asyncio.run(self._until_ready())
        except BaseException:
            self.stop()
            raise

    async def _until_ready(self) -> None:
        assert self.process is not None
        end = time.monotonic() + self.start_limit_s
        async with aiohttp.ClientSession() as session:
            while time.monotonic() < end:
                if self.process.poll() is not None:
                    raise RuntimeError(f"{self.name} ended while starting; {self.log} ends:\n{self.tail()}")
                try:
                    async with session.get(f"http://{HOST}:{self.port}/health") as reply:
                        if reply.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.25)
        raise RuntimeError(f"{self.name} was not ready after {self.start_limit_s:.0f} s:\n{self.tail()}")

    def burst(self, case: Case, variant: int) -> Burst:
        """All streams at once over HTTP."""
        return asyncio.run(self._burst(case, variant))

    async def _burst(self, case: Case, variant: int) -> Burst:
        bodies = [
            json.dumps(self.body(prompt, case.adapter_of(stream), case.new_tokens)).encode()
            for stream, prompt in enumerate(prompts_of(case, variant))
        ]
        answers = [Answer() for _ in bodies]
        timeout = aiohttp.ClientTimeout(total=BURST_LIMIT_S)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=timeout, base_url=f"http://{HOST}:{self.port}"
        ) as session:
            began = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for body, answer in zip(bodies, answers, strict=True):
                    group.create_task(self._stream(session, body, answer, began))
            wall_s = time.perf_counter() - began
        return Burst(wall_s, answers, case.tokens * case.streams)

    async def _stream(
        self, session: aiohttp.ClientSession, body: bytes, answer: Answer, began: float
    ) -> None:
        try:
            headers = {"Content-Type": "application/json"}
            async with session.post(self.path, data=body, headers=headers) as reply:
                if reply.status != 200:
                    answer.error = f"HTTP {reply.status}: {(await reply.text())[:200]}"
                    return
                async for event in events(reply.content):
                    if "error" in event:
                        answer.error = str(event["error"])[:200]
                    elif self.read(event, answer) and answer.first_s is None:
                        answer.first_s = time.perf_counter() - began
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            answer.error = f"{type(error).__name__}: {error}"


async def events(content: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The JSON payloads of a server-sent event stream, up to [DONE]."""
    async for line in content:
        if line.startswith(b"data:"):
            payload = line[5:].strip()
            if payload == b"[DONE]":
                return
            yield json.loads(payload)


def read_openai(event: dict[str, Any], answer: Answer) -> bool:
    """One event of an OpenAI completions stream; the token count comes from its usage."""
    if event.get("usage"):
        answer.tokens = int(event["usage"]["completion_tokens"])
    texts = [choice["text"] for choice in event.get("choices", [])]
    answer.text += "".join(texts)
    return bool(texts)
