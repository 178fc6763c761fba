"""Finds broken links in a built site, and in Markdown of the repository. Makes no requests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+?)\s*$", re.MULTILINE)
_FENCE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1`*$", re.MULTILINE | re.DOTALL)
_HOST = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+(:[0-9]+)?")
# Elements that load a URL when a page is opened.
_LOADS = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}


@dataclass
class Document(HTMLParser):
    """A page's anchors, the targets of its links, and the URLs that it loads."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = dict(attrs)
        self.anchors.update(filter(None, (of.get("id"), of.get("name") if tag == "a" else None)))
        if tag == "a" and of.get("href") is not None:
            self.links.append(of["href"] or "")
        loaded = of.get(_LOADS.get(tag, ""))
        if loaded:
            self.loads.append(loaded)


def broken_in_site(site: Path) -> list[str]:
    """One line for each broken link or missing loaded file of a site, and for each URL that it loads from elsewhere."""
    pages = {page.resolve(): _parse(page) for page in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        here = path.relative_to(site.resolve())
        found += [f"{here}: loads {url} from elsewhere" for url in page.loads if _is_external(url)]
        for url in (*page.links, *page.loads):
            target, fragment = _local(path, url, site)
            if _is_external(url):
                found += [] if _is_url(url) else [f"{here}: {url} is no address"]
            elif not target.exists():
                found.append(f"{here}: {url} leads nowhere")
            elif fragment and target in pages and fragment not in pages[target].anchors:
                found.append(f"{here}: {url} has no such anchor")
    return sorted(set(found))


def broken_in_markdown(file: Path) -> list[str]:
    """One line for each broken link of a Markdown file to a file of the repository, or to an anchor in one."""
    found = []
    for link in _links(file):
        if _is_external(link):
            found += [] if _is_url(link) else [f"{file.name}: {link} is no address"]
            continue
        path, _, fragment = link.partition("#")
        target = (file.parent / unquote(path)).resolve() if path else file
        if not target.exists():
            found.append(f"{file.name}: {link} leads nowhere")
        elif fragment and target.suffix == ".md" and fragment not in anchors(target.read_text("utf-8")):
            found.append(f"{file.name}: {link} has no such anchor")
    return found


def anchors(markdown: str) -> set[str]:
    """GitHub's anchors of headings: lower case, dashes for spaces, without other signs, `-1` for the second one."""
    counts: dict[str, int] = {}
    found = set()
    for heading in _HEADING.findall(_FENCE.sub("", markdown)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        count = counts[slug] = counts.get(slug, -1) + 1
        found.add(f"{slug}-{count}" if count else slug)
    return found


def _links(file: Path) -> Iterator[str]:
    text = _FENCE.sub("", file.read_text("utf-8"))
    # Text in code is no link.
    yield from _LINK.findall(re.sub(r"`[^`\n]*`", "``", text))


def _parse(page: Path) -> Document:
    document = Document()
    document.feed(page.read_text("utf-8"))
    return document


def _local(page: Path, url: str, site: Path) -> tuple[Path, str]:
    parts = urlsplit(url)
    path = unquote(parts.path)
    base = site.resolve() if path.startswith("/") else page.parent
    target = (base / path.lstrip("/")).resolve() if path else page
    return (target / "index.html" if target.is_dir() else target), unquote(parts.fragment)


def _is_external(url: str) -> bool:
    return bool(urlsplit(url).scheme or urlsplit(url).netloc)


def _is_url(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "mailto" or (parts.scheme == "https" and bool(_HOST.fullmatch(parts.netloc.lower())))
