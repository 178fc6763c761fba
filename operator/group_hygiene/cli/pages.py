"""Addresses of pages of the documentation. A package of a release has them in its metadata (`deploy/release.py`)."""

from __future__ import annotations

import re
from functools import cache

import click


def with_addresses(text: str) -> str:
    """The text with the address of each page in place of its file, such as docs/install.md; unchanged without one."""
    return re.sub(r"\bdocs/([\w/-]+)\.md", lambda page: _address(page[1]) or page[0], text)


@cache
def _address(page: str) -> str | None:
    """On the site, else in the repository at this version."""
    # Slow, so that only what names a page imports it.
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        entries = metadata("kafka-group-hygiene").get_all("Project-URL") or []
    except PackageNotFoundError:
        return None
    urls = dict(entry.split(", ", 1) for entry in entries)
    if site := urls.get("Documentation"):
        return f"{site.removesuffix('index.html')}{page}.html"
    changelog = urls.get("Changelog")
    return changelog and f"{changelog.removesuffix('CHANGELOG.md')}docs/{page}.md"


class PageOption(click.Option):
    """An option whose help names a page."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        return record and (record[0], with_addresses(record[1]))
