"""`python -m docsite`: write the generated pages of docs/, and the generated rules of crds/."""

from pathlib import Path

from docsite import command_page, duration_rules, kind_pages, proofs_page, reason_page

DOCS = Path(__file__).parents[1] / "docs"


def pages() -> dict[str, str]:
    """Path below docs/ -> the page's text."""
    return {
        **kind_pages.pages(),
        "cli-reference.md": command_page.page(),
        "reasons.md": reason_page.page(),
        "safety-proofs.md": proofs_page.page(),
    }


def stale() -> list[str]:
    """Paths below docs/ of pages that are outdated or missing, and CRDs with outdated rules."""
    rules = [file for file, text in duration_rules.crds().items() if (duration_rules.CRDS / file).read_text() != text]
    return rules + [
        path for path, text in pages().items() if not (DOCS / path).exists() or (DOCS / path).read_text() != text
    ]


def main() -> None:
    for file, text in duration_rules.crds().items():
        (duration_rules.CRDS / file).write_text(text)
    for path, text in pages().items():
        (DOCS / path).parent.mkdir(exist_ok=True)
        (DOCS / path).write_text(text)


if __name__ == "__main__":
    main()
