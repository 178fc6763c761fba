"""The catalogue of programs and their groups, as a table for docs/cli-reference.md."""

from docsite.markdown import plain, table
from group_hygiene.spec.patterns import catalogue

_TITLES = ["Program", "Group", "Commits", "Empty and needed", "What to do", "Seen"]


def programs() -> str:
    """The table."""
    rows = [
        [
            plain(entry.program),
            ", ".join(f"`{pattern}`" for pattern in entry.groups) or "given by users",
            *map(plain, (entry.commits, entry.needed, entry.advice, entry.seen)),
        ]
        for entry in catalogue()
    ]
    return table(_TITLES, rows)
