"""The system's Chromium, headless, driven by Playwright, which downloads no browser."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, expect, sync_playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_SECONDS = 120.0
"""How long to wait for what should appear. A busy machine is slow, and what comes early is not waited for."""


def program() -> str:
    """Return the path of the browser; BERT_CHROMIUM overrides it."""
    found = [path for name in (os.environ.get("BERT_CHROMIUM", ""), *PROGRAMS) if name and (path := shutil.which(name))]
    if not found:
        raise FileNotFoundError("Chromium is not installed: apt-get install chromium, or set BERT_CHROMIUM to its path")
    return found[0]


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """Run the browser for the duration of the block."""
    flags = ["--disable-gpu", "--disable-dev-shm-usage", "--force-color-profile=srgb"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        flags.append("--no-sandbox")  # Chromium refuses root its sandbox; the pages are our own
    expect.set_options(timeout=1000 * PATIENCE_SECONDS)  # it does not take the page's
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=flags)
        try:
            yield browser
        finally:
            browser.close()


def new_page(browser: Browser, *, width: int = 1600, height: int = 1000) -> Page:
    """Return a page of a fresh profile with a long timeout."""
    context = browser.new_context(viewport={"width": width, "height": height}, locale="en-GB", timezone_id="UTC")
    context.set_default_timeout(1000 * PATIENCE_SECONDS)
    return context.new_page()
