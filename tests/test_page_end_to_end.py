"""The page in a real Chromium, on a real server: the embedded base and the demo's adapters."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect

from browser import SECONDS, browsing, chromium
from lorad.demo.tenant import FOLDER, tenants
from served_process import Serving

pytestmark = pytest.mark.slow
expect.set_options(timeout=SECONDS * 1000)

KEY = "operator"
ROWS = "#adapters tbody tr"


@pytest.fixture(scope="module")
def server(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    chromium()
    modules = [f"{tenant.name}={tenant.path}" for tenant in tenants() if tenant.name != "wordnet"]
    serving = Serving(
        *(str(smollm2_gguf), "--served-model-name", "base", "--control-key", KEY),
        *("--adapter-roots", str(FOLDER), "--max-pinned-bytes", "40000000", "--kv-cache-memory-bytes", "300000000"),
        *("--state-file", str(tmp_path_factory.mktemp("state") / "state.sqlite"), "--lora-modules", *modules),
    )
    yield serving
    assert serving.stop() == 0


async def opened(page: Page) -> None:
    await page.fill("#operator-key", KEY)
    await page.keyboard.press("Enter")
    await expect(page.locator("#connection")).to_have_text("live")


async def number(found: Locator) -> int:
    return int(re.sub(r"\D", "", await found.text_content() or "") or 0)


def tile(page: Page, name: str) -> Locator:
    return page.locator(".tile", has=page.get_by_text(name, exact=True)).locator(".value")


def row(page: Page, name: str) -> Locator:
    return page.locator(ROWS, has=page.get_by_role("rowheader", name=name, exact=True))


async def test_figures_change_under_traffic(server: Serving) -> None:
    async with browsing(server.url + "/ui") as page:
        await opened(page)
        await expect(page.locator(ROWS)).to_have_count(len(tenants()) - 1)
        steps = tile(page, "Steps")
        before = await number(steps)
        body = {"model": "devil", "messages": [{"role": "user", "content": "Define: war"}], "max_tokens": 300}
        body |= {"ignore_eos": True, "temperature": 0}
        asked = [asyncio.create_task(asyncio.to_thread(server.post, "/v1/chat/completions", body)) for _ in range(3)]
        await expect(tile(page, "Running")).to_have_text("3")
        await expect(row(page, "devil")).to_have_class("busy")
        await expect(row(page, "devil").locator(".tier")).to_have_text("hot")
        await expect(page.locator("#pool-owners")).to_contain_text("devil")
        await expect(page.locator("#pool-map path.sequences")).to_have_attribute("d", re.compile("^M"))
        await expect(tile(page, "Tokens/s")).not_to_have_text("0")
        assert [status for status, _ in await asyncio.gather(*asked)] == [200] * 3
        await expect(tile(page, "Running")).to_have_text("0")
        await expect(tile(page, "TTFT p95")).to_contain_text("s")
        await expect(page.locator("figure .line.tokens")).to_have_attribute("d", re.compile("^M.*L"))
        assert await number(steps) > before


async def test_load_pin_prewarm_and_unload_by_buttons(server: Serving) -> None:
    async with browsing(server.url + "/ui") as page:
        await opened(page)
        await page.fill("#load-name", "team/wordnet")
        await page.fill("#load-source", str(FOLDER / "wordnet"))
        await page.click("#load button[type=submit]")
        mine = row(page, "team/wordnet")
        await expect(mine.locator(".tier")).to_have_text("cold")
        await expect(page.locator("#operations")).to_contain_text("team/wordnet: loaded in")
        await page.fill("#model-filter", "team/")
        await expect(page.locator("#model-matches")).to_contain_text("team/wordnet"), "the playground knows it too"
        await page.get_by_role("button", name="Prewarm team/wordnet").click()
        await expect(mine.locator(".tier")).to_have_text("hot")
        await page.get_by_role("button", name="Pin team/wordnet", exact=True).click()
        await expect(mine.locator(".pinned")).to_be_visible()
        await page.get_by_role("button", name="Unpin team/wordnet").click()
        await expect(mine.locator(".pinned")).to_be_hidden()
        await page.get_by_role("button", name="Unload team/wordnet").click()
        await page.locator("dialog button.danger").click()
        await expect(mine).to_have_count(0)
        await expect(page.locator("#operations")).to_contain_text("team/wordnet: unloaded in")
        status, answer = server.post("/v1/completions", {"model": "team/wordnet", "prompt": "x"})
        assert status == 404, answer


async def test_the_playground_streams_from_three_adapters(server: Serving) -> None:
    async with browsing(server.url + "/ui") as page:
        await expect(page.locator("#model-chosen button")).to_have_count(3)
        await page.get_by_role("button", name="Remove jargon").click()
        await page.fill("#model-filter", "phones")
        await page.keyboard.press("Enter")
        await page.fill("#prompt", "Define: lawyer")
        await page.evaluate(KEEP_STATES)
        await page.click("#ask")
        await expect(page.locator(".answer[aria-busy=false]")).to_have_count(3)
        for name in ("devil", "kjv", "phones"):
            body = {"model": name, "messages": [{"role": "user", "content": "Define: lawyer"}], "max_tokens": 64}
            status, answer = server.post("/v1/chat/completions", body | {"temperature": 0})
            assert status == 200
            card = page.locator(".answer", has=page.get_by_role("heading", name=name, exact=True))
            said = await card.locator(".said").text_content()
            message = answer["choices"][0]["message"]["content"]  # type: ignore[index]
            assert said and said.split()[0] == message.split()[0], (said, message)
            states = await page.evaluate("(name) => [...window.seen.get(name)]", name)
            assert len(states) >= 4 and all(said.startswith(state) for state in states), "it grew piece by piece"
            await expect(card.locator(".quiet")).to_contain_text("tok/s")
        await page.fill("#prompt", "Tell me a very long story.")
        await page.fill("#max-tokens", "2000")
        await page.click("#ask")
        await expect(page.locator(".answer .said:not(:empty)")).not_to_have_count(0)
        await page.click("#stop")
        await expect(page.locator(".answer[aria-busy=false]")).to_have_count(3)
        await expect(page.locator("#ask")).to_be_focused()
        await opened(page)
        await expect(tile(page, "Running")).to_have_text("0")


KEEP_STATES = """
() => {
  window.seen = new Map();
  const look = () => {
    for (const card of document.querySelectorAll(".answer")) {
      const name = card.querySelector("h3").textContent;
      if (!seen.has(name)) seen.set(name, new Set());
      seen.get(name).add(card.querySelector(".said").textContent);
    }
  };
  const whole = { childList: true, subtree: true, characterData: true };
  new MutationObserver(look).observe(document.getElementById("answers"), whole);
}
"""
"""Keeps every state of each answer's text, by model."""
