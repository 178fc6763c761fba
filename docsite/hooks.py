"""Hooks for mkdocs: a file of the repository that a page links to becomes a page of the site.

In docs/ such a link is relative, like `../examples/quickstart.yaml`, so that it works in a checkout and on a Git host.
The site has no files outside of docs/: so a page shows the file, or links to all files of a folder.
"""

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_FOLDER = "repository"
_LINK = re.compile(r"(?<=\]\()(\.\./[^)#\s]+)(?=[)#])")
_LANGUAGES = {".yaml": "yaml", ".yml": "yaml", ".json": "json", ".sh": "bash", ".py": "python"}
# Characters of a file on a page.
_LONGEST = 300_000


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file and folder outside of docs/ that a page of docs/ links to."""
    for file in list(files.documentation_pages()):
        for link in _LINK.findall(file.content_string):
            target = _outside(file.src_uri, link)
            for shown in () if target is None else (target, *_within(target)):
                if files.get_file_from_path(_uri(shown)) is None:
                    files.append(
                        File.generated(config, _uri(shown), content=_page(shown), inclusion=InclusionLevel.NOT_IN_NAV)
                    )
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace such links by links to those pages."""
    here = page.file.src_uri

    def within(match: re.Match[str]) -> str:
        target = _outside(here, match[1])
        return match[1] if target is None else relpath(_uri(target), join(here, ".."))

    return markdown if here.startswith(_FOLDER) else _LINK.sub(within, markdown)


def _outside(page: str, link: str) -> str | None:
    """The file or folder of the repository that a page of docs/ links to; None within docs/, and if it does not exist,
    which mkdocs reports."""
    target = normpath(join("docs", page, "..", link))
    known = not target.startswith(("docs/", "..")) and (ROOT / target).exists()
    return target if known else None


def _uri(target: str) -> str:
    return f"{_FOLDER}/{target}.md"


def _page(target: str) -> str:
    path = ROOT / target
    head = f"---\nsearch: {{exclude: true}}\n---\n\n# {target}\n\n"
    if path.is_dir():
        links = [
            f"- [{relpath(file, target)}]({relpath(_uri(file), dirname(_uri(target)))})\n" for file in _within(target)
        ]
        return head + "A folder of the repository:\n\n" + "".join(links)
    text = path.read_text("utf-8")[:_LONGEST]
    return f"{head}````` {_LANGUAGES.get(path.suffix, 'text')}\n{text}\n`````\n"


def _within(target: str) -> list[str]:
    """The files in a folder, recursively; none for a file."""
    files = (file for file in (ROOT / target).rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return sorted(str(file.relative_to(ROOT)) for file in files)
