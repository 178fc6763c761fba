"""A real Chromium, without a network to speak of, and pages in it that may neither fail nor load anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, sync_playwright

from group_hygiene.observe.page import render
from testing.sandbox.browser import arguments, find
from testing.sandbox.errors import MissingPrerequisite
from tests.findings import HOSTILE, empty, rich, suggestion

# Opens the report (or the file that is given): Open(width, scheme, file, fragment, media, javascript).
Open = Callable[..., Page]
Scheme = Literal["light", "dark"]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The browser of this machine; a failure without one, as nothing else looks at the page.

    Not for longer than a module: as long as Playwright is there, its event loop runs in this thread.
    """
    try:
        program = str(find())
    except MissingPrerequisite as error:
        pytest.fail(str(error), pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments())
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a cluster with all there is to tell, and with names that were made to break it."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(render(rich(names=HOSTILE, owners=True)), "utf-8")
    return file


@pytest.fixture(scope="session")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a cluster without groups."""
    file = tmp_path_factory.mktemp("nothing") / "report.html"
    file.write_text(render(empty()), "utf-8")
    return file


@pytest.fixture(scope="session")
def longest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a cluster whose names are as long as names can be, without a place to break them."""
    names = [f"{n:04}".ljust(249, "W") for n in range(5000)]
    findings = rich(rows=len(names), names=names)
    policies = [suggestion(name) for name in names[:3]]
    file = tmp_path_factory.mktemp("longest") / "report.html"
    file.write_text(render(replace(findings, cluster_id=names[0], suggestions=policies)), "utf-8")
    return file


@pytest.fixture
def opened(chromium: Browser, report: Path) -> Iterator[Open]:
    """Opens pages; at the end, none of them may have had an error, a dialog, or a request besides its file."""
    wrong: list[str] = []
    contexts: list[BrowserContext] = []

    def note(what: str) -> None:
        if what:
            wrong.append(what)

    def asked(dialog: Dialog) -> None:
        note(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def open_page(
        width: int = 1280, scheme: Scheme = "light", file: Path = report, fragment: str = "", javascript: bool = True
    ) -> Page:
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=javascript
        )
        contexts.append(context)
        page = context.new_page()
        address = file.as_uri()
        page.on("console", lambda message: note(message.text if message.type in ("error", "warning") else ""))
        page.on("pageerror", lambda error: note(str(error)))
        page.on("request", lambda r: note("" if r.url.split("#")[0] == address else f"asked for {r.url}"))
        page.on("dialog", asked)
        page.goto(address + fragment)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []
