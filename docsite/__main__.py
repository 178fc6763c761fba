"""`python -m docsite`: write the generated pages of docs/."""

from pathlib import Path

from docsite import command_page, kind_pages

DOCS = Path(__file__).parents[1] / "docs"


def pages() -> dict[str, str]:
    """Path below docs/ -> what must stand there."""
    return {**kind_pages.pages(), "cli-reference.md": command_page.page()}


def stale() -> list[str]:
    """Paths below docs/ of the pages that say something else, or are not there."""
    return [path for path, text in pages().items() if not (DOCS / path).exists() or (DOCS / path).read_text() != text]


def main() -> None:
    for path, text in pages().items():
        (DOCS / path).parent.mkdir(exist_ok=True)
        (DOCS / path).write_text(text)


if __name__ == "__main__":
    main()
