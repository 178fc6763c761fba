"""docs/programs.md: the catalogue of programs and their groups."""

from docsite.markdown import plain, table
from group_hygiene.spec.catalogue import catalogue

_HEAD = """\
# Programs, and the groups that they leave

<!-- Made by `make docs` of operator/group_hygiene/spec/catalogue.yaml: edit that. -->

What programs leave in Kafka when they end, as seen on a broker of 4.4.0; `group-hygiene catalogue -o wide` shows the
same. `plan`, `explain` and the report name the program of a group whose id looks like one of these. That is a hint,
and no evidence: no check uses it.

Begin with the ids that a program makes up at each start: no client uses such a group again.

"""
_TITLES = ["Program", "Group", "Commits", "Empty and needed", "What to do", "Seen"]


def page() -> str:
    """The text."""
    rows = [
        [
            plain(entry.program),
            ", ".join(f"`{pattern}`" for pattern in entry.groups) or "given by users",
            *map(plain, (entry.commits, entry.needed, entry.advice, entry.seen)),
        ]
        for entry in catalogue()
    ]
    return _HEAD + table(_TITLES, rows)
