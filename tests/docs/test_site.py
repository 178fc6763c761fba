"""The site of docs/ is built without a warning, and each link in it and in the Markdown leads somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docsite.links import broken_in_markdown, broken_in_site

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. Fails with what mkdocs says, if it warns of anything."""
    folder = tmp_path_factory.mktemp("site")
    # Not --quiet: what is not said doesn't count for --strict either.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_each_link_of_the_site_leads_somewhere(site: Path) -> None:
    """To a file and an anchor that are there; and no page loads anything from elsewhere."""
    assert broken_in_site(site) == []


@pytest.mark.slow
def test_files_of_the_repository_are_shown_in_the_site(site: Path) -> None:
    """What a page links to outside of docs/, with its text, and of a folder all that is in it."""
    shown = (site / "repository/examples/restore.yaml.html").read_text()
    assert "GroupRestore" in shown
    assert 'href="examples/demo/policy-idle.yaml.html"' in (site / "repository/examples.html").read_text()


def test_each_link_of_markdown_leads_somewhere() -> None:
    """Where the repository is shown as files: README, changelog and docs/."""
    files = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
    assert [broken for file in files for broken in broken_in_markdown(file)] == []


@pytest.mark.parametrize(
    ("html", "says"),
    [
        pytest.param('<a href="gone.html">x</a>', "gone.html leads nowhere", id="file"),
        pytest.param('<a href="b.html#gone">x</a>', "b.html#gone has no such anchor", id="anchor"),
        pytest.param('<a href="https://nowhere">x</a>', "https://nowhere is no address", id="address"),
        pytest.param('<img src="https://a.example.com/x.png">', "from elsewhere", id="loaded"),
    ],
)
def test_what_the_check_finds(tmp_path: Path, html: str, says: str) -> None:
    """A link check that finds nothing proves nothing."""
    (tmp_path / "a.html").write_text(html)
    (tmp_path / "b.html").write_text('<h1 id="there">b</h1><a href="#there">x</a><a href="a.html">x</a>')
    (broken,) = broken_in_site(tmp_path)
    assert says in broken


def test_what_the_check_of_markdown_finds(tmp_path: Path) -> None:
    """Files and anchors that are not there, and nothing in code."""
    (tmp_path / "a.md").write_text(
        "# A b: c\n[x](#a-b-c) [x](b.md) [x](a.md#gone) `[x](no.md)`\n```\n[x](no.md)\n```\n"
    )
    assert broken_in_markdown(tmp_path / "a.md") == ["a.md: b.md leads nowhere", "a.md: a.md#gone has no such anchor"]


def test_the_picture_shows_the_story() -> None:
    """The steps of architecture.svg are those of the page, in its order, and each is a function of the code."""
    text = (ROOT / "docs" / "architecture.svg").read_text()
    drawn = re.findall(r'class="name mono"[^>]*>([a-z][a-z_]+)<', text)
    line = (ROOT / "docs" / "architecture.md").read_text().partition("## The line")[2].partition("\n## ")[0]
    page = re.findall(r"^\| `[a-z_/]+\.([a-z_]+)` \|", line, re.MULTILINE)
    assert drawn
    assert [step for step in page if step != "judge"] == drawn
    code = "\n".join(file.read_text() for file in (ROOT / "operator").rglob("*.py"))
    assert [step for step in (*drawn, "judge") if f"def {step}(" not in code] == []
