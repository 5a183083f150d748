"""A real Chromium for tests of the page, and what it must never say."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from playwright.async_api import ConsoleMessage, Page, async_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")

VIOLATION = "policy violation"
WATCH = f"""
document.addEventListener("securitypolicyviolation", (event) =>
  console.error("{VIOLATION}", event.violatedDirective, event.blockedURI));
"""

SECONDS = 30.0
"""How long anything may take to be seen; the machine may be busy."""


def chromium() -> str:
    """Its path: LORAD_TEST_CHROMIUM, or one of the usual names; the test is skipped where there is none."""
    found = os.environ.get("LORAD_TEST_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed (Debian: apt-get install chromium)")
    return found


class Watch:
    """All that the page complained of."""

    def __init__(self, page: Page) -> None:
        self.said: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.said.append(f"uncaught: {error}"))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.said.append(message.text)

    @contextlib.contextmanager
    def expecting(self, *parts: str) -> Iterator[None]:
        """Within it complaints may be made that have one of `parts`, and at least one is."""
        before, self.said = self.said, []
        yield
        assert self.said, f"nothing was said of {parts}"
        rest = [text for text in self.said if not any(part in text for part in parts)]
        self.said = before + rest


WATCHES: WeakKeyDictionary[Page, Watch] = WeakKeyDictionary()
"""Of each page that is open."""


@contextlib.asynccontextmanager
async def browsing(url: str, **options: Any) -> AsyncIterator[Page]:
    """The page at `url` in a browser of its own; nothing may be complained of. `options`: of the context."""
    path = chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path)
        try:
            context = await browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
            context.set_default_timeout(SECONDS * 1000)
            await context.add_init_script(WATCH)
            page = await context.new_page()
            watch = WATCHES[page] = Watch(page)
            await page.goto(url)
            yield page
            assert watch.said == []
        finally:
            await browser.close()
