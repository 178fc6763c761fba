"""Group ids as lines of text: `-o name` prints them, `--from-file` reads them. Pure.

Kafka accepts any string as a group id, also the empty one and ids with line breaks.
"""

from __future__ import annotations

import codecs
import json

from group_hygiene.errors import UsageError
from group_hygiene.model.naming import id_line

_QUOTE = '"'


def line_of(text: str, encoding: str = "utf-8") -> str:
    """As `id_line`. encoding: of the stream that the line is for."""
    fits = text.isascii() or codecs.lookup(encoding).name == "utf-8"
    return id_line(text) if fits else json.dumps(text)


def text_of(line: str) -> str:
    """The text of a line by `line_of`. Raises UsageError for a line that begins with a quote and is no JSON string."""
    if not line.startswith(_QUOTE):
        return line
    try:
        text = json.loads(line)
    except ValueError:
        raise UsageError(f"{line} begins with a quote, but is no JSON string") from None
    # JSON that begins with a quote is a string.
    return str(text)
