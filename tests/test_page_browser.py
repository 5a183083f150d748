"""The page in a real Chromium, over a scripted engine: keys, names, keyboard, many adapters, tenants, widths."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from browser import SECONDS, VIOLATION, WATCHES, browsing
from controlling import KEY, Control, controlling
from lorad.engine.messages import AdapterStats
from lorad.tenants.file import TenantFile
from lorad.tenants.tenant import Tenant
from scripted_engine import adapter_info, empty_stats
from serving import serving

expect.set_options(timeout=SECONDS * 1000)

EVIL = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>"
ROWS = "#adapters tbody tr"


@contextlib.asynccontextmanager
async def page_of(control: Control, key: str = KEY, **options: Any) -> AsyncIterator[Page]:
    """The page, with the operator's key given."""
    async with browsing(control.client.address + "/ui", **options) as page:
        if key:
            await give(page, key)
        yield page


async def give(page: Page, operator: str, api: str = "") -> None:
    """Types keys and sends them."""
    if not await page.locator("#operator-key").is_visible():
        await page.click("summary")
    await page.fill("#operator-key", operator)
    await page.fill("#api-key", api)
    await page.click("#keys button[type=submit]")


def adopt(control: Control, *names: str) -> None:
    for name in names:
        info = adapter_info(name)
        control.manager.registry.publish(info)
        control.manager.adopt(name, f"/roots/{name}", info)


async def names(page: Page) -> list[str]:
    return await page.locator(f"{ROWS} th").all_text_contents()


# keys


async def test_without_a_key_it_says_what_is_missing_and_the_playground_works(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        adopt(control, "devil")
        async with page_of(control, key="") as page:
            await expect(page.locator("#live-notice")).to_have_text(
                "Live figures are for operators: give the operator's key above."
            )
            await expect(page.locator("#live")).to_be_hidden()
            await page.fill("#prompt", "hello")
            await page.click("#ask")
            await expect(page.locator(".answer .said").first).to_contain_text("hello")


async def test_a_wrong_key_is_refused_in_words_and_not_tried_again(tmp_path: Path) -> None:
    async with controlling(tmp_path, api_key="sk-right") as control, browsing("about:blank") as page:
        watch = WATCHES[page]
        with watch.expecting("401"):
            await page.goto(control.client.address + "/ui")
            await expect(page.locator("#models-notice")).to_contain_text("the API key is wanted")
            await give(page, "wrong")
            await expect(page.locator("#live-notice")).to_have_text("No live figures: the control key isn't valid.")
            await expect(page.locator("#connection")).to_have_text("refused")
            await expect(page.locator("#live")).to_be_hidden()
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            await asyncio.sleep(2.5)
            assert asked == [], "a key that was refused isn't sent again and again"
        await give(page, KEY, "sk-right")
        await expect(page.locator("#connection")).to_have_text("live")
        await expect(page.locator("#models-notice")).to_be_hidden()
        assert KEY not in page.url and not any(KEY in url or "sk-right" in url for url in asked)
        await page.reload()
        await expect(page.locator("#connection")).to_have_text("live"), "the tab keeps the keys"
        await page.click("summary")
        with watch.expecting("401"):
            await page.click("#forget")
            await expect(page.locator("#models-notice")).to_contain_text("the API key is wanted")
        await expect(page.locator("#live")).to_be_hidden()
        assert await page.evaluate("sessionStorage.length") == 0


async def test_where_control_is_off_it_says_how_to_turn_it_on(tmp_path: Path) -> None:
    async with serving() as client, browsing(client.address + "/ui") as page:
        watch = WATCHES[page]
        with watch.expecting("403"):
            await give(page, "anything")
            await expect(page.locator("#live-notice")).to_contain_text("--control-key turns them on")


async def test_a_key_that_no_header_can_hold_is_told(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control, page_of(control, "sch\u00f6n") as page:
        await expect(page.locator("#keys-notice")).to_have_text("a key has no spaces and no letters beyond ASCII")


async def test_a_server_that_is_gone_is_told_and_found_again(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control, page_of(control) as page:
        await expect(page.locator("#connection")).to_have_text("live")
        watch = WATCHES[page]
        with watch.expecting("ERR_INTERNET_DISCONNECTED"):
            await page.context.set_offline(True)
            await expect(page.locator("#live-notice")).to_have_text(
                "The figures stand still: the server can't be reached."
            )
            await expect(page.locator("#live")).to_be_visible()
            await page.context.set_offline(False)
            await expect(page.locator("#connection")).to_have_text("live")
        await expect(page.locator("#live-notice")).to_be_hidden()


# names


async def test_names_with_markup_stay_text_everywhere(tmp_path: Path) -> None:
    file = TenantFile(tmp_path / "state.sqlite")
    file.put(Tenant("<b>acme</b>", 0))
    operator = file.add_key(None)[0]
    api = file.add_key("<b>acme</b>")[0]
    file.close()
    async with controlling(tmp_path, tenants=tmp_path / "state.sqlite", control_key="") as control:
        adopt(control, EVIL)
        stats = {f"gen-{EVIL}": AdapterStats("hot", 0, 0, 3)}
        control.engine.stats_now = empty_stats(adapters=stats)
        control.engine.script = lambda request: list(EVIL.encode())
        async with browsing("about:blank") as page:
            watch = WATCHES[page]
            dialogs: list[str] = []
            page.on("dialog", lambda dialog: dialogs.append(dialog.message))
            with watch.expecting("401"):
                await page.goto(control.client.address + "/ui")
                await expect(page.locator("#models-notice")).to_be_visible()
            await give(page, operator, api)
            await expect(page.locator(f"{ROWS} th")).to_have_text(EVIL)
            await expect(page.locator("#tenants tbody th")).to_have_text("<b>acme</b>")
            await expect(page.locator("#pool-owners")).to_contain_text(EVIL)
            await expect(page.locator("#model-chosen")).to_contain_text(EVIL)
            await page.click("#ask")
            await expect(page.locator(".answer h3").first).to_have_text(EVIL)
            await expect(page.locator(".answer .said").first).to_have_text(EVIL)
            await page.get_by_role("button", name=f"Unload {EVIL}").click()
            await expect(page.locator("#unload-title")).to_have_text(f"Unload {EVIL}?")
            await page.keyboard.press("Escape")
            assert await page.locator("img, #live script, #playground-section script, #tenants b").count() == 0
            assert dialogs == []


async def test_the_policy_is_in_force_and_violations_would_be_seen(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control, page_of(control) as page:
        await expect(page.locator("#connection")).to_have_text("live")
        watch = WATCHES[page]
        with watch.expecting(VIOLATION, "Content Security Policy", "TrustedHTML"):
            refused = (
                "() => { try { document.body.innerHTML = '<b>x</b>'; return 'taken'; } catch (e) { return e.name; } }"
            )
            assert await page.evaluate(refused) == "TypeError"
            await page.evaluate("() => void fetch('http://127.0.0.1:9/').catch(() => {})")
            async with asyncio.timeout(SECONDS):
                while not any(VIOLATION in text and "connect-src" in text for text in watch.said):
                    await asyncio.sleep(0.05)


# adapters


async def test_five_thousand_adapters_are_filtered_and_paged(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        adopt(control, *(f"team-{number % 50:02d}/adapter-{number:04d}" for number in range(5000)))
        async with page_of(control) as page:
            await expect(page.locator(ROWS)).to_have_count(25)
            await expect(page.locator("#adapters-text")).to_have_text("5,000 adapters, 5,000 cold.")
            await expect(page.locator("#pager-text")).to_have_text("1 to 25 of 5,000")
            assert await page.evaluate("document.querySelectorAll('*').length") < 1500
            await page.click("#next")
            await expect(page.locator("#pager-text")).to_have_text("26 to 50 of 5,000")
            await page.fill("#filter", "ADAPTER-499")
            await expect(page.locator("#pager-text")).to_have_text("1 to 10 of 10")
            await expect(page.locator(ROWS)).to_have_count(10)
            assert all("adapter-499" in name for name in await names(page))
            await page.select_option("#tier", "hot")
            await expect(page.locator("#pager-text")).to_have_text("none")
            await page.fill("#model-filter", "0042")
            await expect(page.locator("#model-matches button")).to_have_count(1)
            await page.keyboard.press("Enter")
            await expect(page.locator("#model-chosen")).to_contain_text("adapter-0042")
            await page.fill("#model-filter", "")
            await expect(page.locator("#model-matches button")).to_have_count(12)


async def test_a_load_that_fails_says_why(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control, page_of(control) as page:
        await page.fill("#load-name", "x")
        await page.fill("#load-source", str(control.root / "nowhere"))
        await page.click("#load button[type=submit]")
        await expect(page.locator("#action-notice")).to_contain_text("x: load failed: there is no folder")
        await expect(page.locator("#operations")).to_contain_text("x: load failed")
        await expect(page.locator(ROWS)).to_have_count(0)


async def test_a_pin_that_has_no_room_says_why(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        control.engine.pins_max = 1
        for name in "ab":
            await control.load(name, control.write(name, name))
        async with page_of(control) as page:
            await page.get_by_role("button", name="Pin a").click()
            await expect(page.get_by_role("button", name="Unpin a")).to_be_visible()
            watch = WATCHES[page]
            with watch.expecting("429"):
                await page.get_by_role("button", name="Pin b", exact=True).click()
                await expect(page.locator("#action-notice")).to_contain_text("pinning b: at most 1 pins")
            await page.get_by_role("button", name="Unpin a").click()
            await expect(page.get_by_role("button", name="Pin a", exact=True)).to_be_visible()
            await expect(page.locator("#action-notice")).to_be_hidden()


async def test_all_of_it_by_keyboard(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        await control.load("first", control.write("first", "first"))
        source = control.write("second", "second")
        async with page_of(control, key="") as page:
            focused = page.locator(":focus")

            async def tab_to(id: str) -> None:
                for _ in range(80):
                    await page.keyboard.press("Tab")
                    if await focused.get_attribute("id") == id:
                        outline = await focused.evaluate("element => getComputedStyle(element).outlineStyle")
                        assert outline != "none", f"{id} has the focus and doesn't show it"
                        return
                raise AssertionError(f"{id} can't be reached")

            await page.keyboard.press("Tab")
            await expect(focused).to_have_text("Skip to the figures")
            await tab_to("operator-key")
            await page.keyboard.type(KEY)
            await page.keyboard.press("Enter")
            await expect(page.locator(ROWS)).to_have_count(1)
            await expect(focused).to_have_js_property("tagName", "SUMMARY")
            await tab_to("load-name")
            await page.keyboard.type("second")
            await page.keyboard.press("Tab")
            await page.keyboard.type(source)
            await page.keyboard.press("Enter")
            await expect(page.locator(ROWS)).to_have_count(2)
            await expect(page.locator("#announcements")).to_contain_text("second: loaded")
            await page.get_by_role("button", name="Unload second").focus()
            await page.keyboard.press("Enter")
            await expect(focused).to_have_text("Keep it")
            await page.keyboard.press("Escape")
            await expect(focused).to_have_attribute("aria-label", "Unload second")
            await page.keyboard.press("Enter")
            await page.keyboard.press("Tab")
            await expect(focused).to_have_text("Unload")
            await page.keyboard.press("Enter")
            await expect(page.locator(ROWS)).to_have_count(1)
            await expect(focused).to_have_id("adapters-title"), "the row that had the focus is gone"
            await tab_to("prompt")
            await page.keyboard.press("Control+A")
            await page.keyboard.type("hello")
            await tab_to("ask")
            await page.keyboard.press("Enter")
            await expect(page.locator(".answer[aria-busy=false] .said").first).to_contain_text("hello")
            await expect(page.locator("#announcements")).to_contain_text("first: ")


async def test_figures_that_change_leave_the_focus_where_it_is(tmp_path: Path) -> None:
    async with controlling(tmp_path) as control:
        adopt(control, "a", "b", "c")
        async with page_of(control) as page:
            await page.select_option("#sort", "in_flight")
            await expect(page.locator(ROWS)).to_have_count(3)
            await page.get_by_role("button", name="Pin c").focus()
            control.engine.stats_now = empty_stats(adapters={"gen-c": AdapterStats("hot", 5, 0, 3)})
            await expect(page.locator(f"{ROWS}:first-child th")).to_have_text("c")
            await expect(page.locator(":focus")).to_have_attribute("aria-label", "Pin c")
            await page.click("#pause")
            await expect(page.locator("#connection")).to_have_text("paused")
            control.engine.stats_now = empty_stats(adapters={"gen-b": AdapterStats("hot", 9, 0, 3)})
            await asyncio.sleep(2.5)
            assert (await names(page))[0] == "c", "paused is paused"
            await page.click("#pause")
            await expect(page.locator(f"{ROWS}:first-child th")).to_have_text("b")


# looks


@pytest.mark.parametrize("width", [1280, 380])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_fits_and_can_be_read(tmp_path: Path, width: int, scheme: str) -> None:
    async with controlling(tmp_path) as control:
        adopt(control, "a", "very-long-" * 20, "org/" + "w" * 200)
        hot = {"gen-a": AdapterStats("hot", 1, 0, 3)}
        control.engine.stats_now = empty_stats(adapters=hot)
        view = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
        async with page_of(control, **view) as page:
            await expect(page.locator(ROWS)).to_have_count(3)
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
            assert await page.evaluate(CONTRASTS) == []
            picture = await page.screenshot(path=str(tmp_path / f"{scheme}-{width}.png"), full_page=True)
            assert picture.startswith(b"\x89PNG")
            ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
            other = {"light": "dark", "dark": "light"}[scheme]
            await page.select_option("#theme", other)
            assert await page.evaluate("getComputedStyle(document.body).backgroundColor") != ground
            assert await page.evaluate(CONTRASTS) == []
            await page.reload()
            await expect(page.locator("#theme")).to_have_value(other)


CONTRASTS = """
() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const [r, g, b] = rgb(colour).map((part) => part / 255).map((part) =>
      part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (rgb(colour)[3] > 0) return colour;
    }
    return "white";
  };
  const weak = [];
  for (const element of document.querySelectorAll("main *, header *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest("[aria-disabled=true], :disabled")) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(ground(element))].sort((x, y) => y - x);
    const { tagName, className, textContent } = element;
    if ((a + 0.05) / (b + 0.05) < 4.5) weak.push(`${tagName} ${className} ${textContent.slice(0, 20)}`);
  }
  return weak;
}
"""
"""Texts whose contrast with what is behind them is below 4.5 to 1 (WCAG's AA)."""
