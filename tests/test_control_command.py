"""`lorad adapters …` against a running server."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from controlling import KEY, Control, controlling
from lorad.cli import main
from lorad.control.command import print_adapters


async def lorad(control: Control, capsys: pytest.CaptureFixture[str], *words: str, key: str = KEY) -> tuple[int, str]:
    """Runs the command line against a server; its exit code and all that it wrote."""
    command = ["adapters", *words, "--server", control.client.address, "--control-key", key]
    code = await asyncio.to_thread(main, command)
    written = capsys.readouterr()
    return code, written.out + written.err


async def test_adapters_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with controlling(tmp_path) as control:
        source = control.write("a", "one")
        code, text = await lorad(control, capsys, "load", "acme/devil", source)
        assert code == 0 and text.startswith("acme/devil: loaded in") and "generation gen-" in text
        assert "unchanged" in (await lorad(control, capsys, "load", "acme/devil", source))[1]
        control.write("a", "two")
        assert "reloaded" in (await lorad(control, capsys, "load", "acme/devil", source, "--reload", "--pinned"))[1]
        code, text = await lorad(control, capsys, "list")
        assert code == 0 and "acme/devil" in text and "ready, pinned" in text and source[:12] in text
        code, text = await lorad(control, capsys, "list", "--json")
        assert json.loads(text)["data"][0]["name"] == "acme/devil"
        assert "ready, pinned" not in (await lorad(control, capsys, "unpin", "acme/devil"))[1]
        assert "hot" in (await lorad(control, capsys, "prewarm", "acme/devil"))[1]
        assert "unloaded" in (await lorad(control, capsys, "unload", "acme/devil", "--within", "5"))[1]
        code, text = await lorad(control, capsys, "unload", "acme/devil")
        assert code == 1 and "[adapter_not_found]" in text


async def test_refusals_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with controlling(tmp_path) as control:
        control.engine.bad = "broken"
        code, text = await lorad(control, capsys, "load", "x", control.write("a", "broken"))
        assert code == 1 and "it's broken [adapter_rank]" in text
        code, text = await lorad(control, capsys, "list", key="wrong")
        assert code == 1 and "--control-key or LORAD_CONTROL_KEY gives it [invalid_api_key]" in text
        code, text = await lorad(control, capsys, "list", key="")
        assert code == 1 and "--control-key or LORAD_CONTROL_KEY gives it [missing_api_key]" in text
        control.client.address = "http://127.0.0.1:9"
        code, text = await lorad(control, capsys, "list")
        assert code == 1 and "[server_unreachable]" in text


@pytest.mark.parametrize(("count", "title"), [(0, "0 adapters"), (1, "1 adapter"), (2, "2 adapters")])
@pytest.mark.parametrize("width", [20, 140])
def test_one_adapter_is_one(count: int, title: str, width: int) -> None:
    card = {"name": "a", "state": "ready", "pinned": False, "source": "s"}
    console = Console(width=width, file=io.StringIO())
    print_adapters([card] * count, console)
    assert isinstance(console.file, io.StringIO)
    assert title in map(str.strip, console.file.getvalue().splitlines())


@pytest.mark.parametrize("width", [40, 80, 120, 140])
def test_a_list_breaks_no_word_but_long_ones(width: int) -> None:
    cards = [
        {
            "name": "acme/devil",
            "state": "ready",
            "pinned": True,
            "tier": "hot",
            "generation": "0123456789abcdef0123456789abcdef",
            "rank": 16,
            "bytes": 12_345_678,
            "pages": 31,
            "running": 2,
            "waiting": 7,
            "source": "hf://acme/an-adapter-with-a-rather-long-name@refs/heads/main",
        },
        {
            "name": "acme/[red]broken",
            "state": "failed",
            "pinned": False,
            "error": {"code": "adapter_rank"},
            "source": "adapters/broken",
        },
    ]
    console = Console(width=width, file=io.StringIO())
    print_adapters(cards, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    for word in (
        "acme/devil",
        "acme/[red]broken",
        "ready, pinned",
        "hot",
        "0123456789ab",
        "failed: adapter_rank",
        "12.3",
    ):
        assert any(word in line for line in lines), (word, text)
    assert "hf://acme/an-adapter-with-a-rather-long-name@refs/heads/main" in "".join(
        line.strip().split("│")[-2 if "│" in line else 0].strip() for line in lines
    )
    assert ("┃" in text) == (width == 140)
