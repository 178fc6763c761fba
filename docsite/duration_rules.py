"""The rules of durations in crds/, from the grammar of `group_hygiene.spec.fields`. No I/O except reading crds/.

`x-kubernetes-validations: # duration 5s 24h` names the bounds, and generated rules follow. The upper one may be absent.
"""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

from group_hygiene.spec.fields import DURATION, parse_duration

CRDS = Path(__file__).parents[1] / "crds"
_MARKED = re.compile(
    r"^( *)x-kubernetes-validations: # duration (?P<low>\w+)(?: (?P<high>\w+))?\n(?:\1  .*\n)*", re.MULTILINE
)
# CEL has no days: they are counted apart, and `duration` reads the rest.
_MILLISECONDS = (
    "(self.contains('d') ? int(self.substring(0, self.indexOf('d'))) * 86400000 : 0)",
    "+ (self.endsWith('d') ? 0 : duration(self.substring(self.indexOf('d') + 1)).getMilliseconds())",
)
_RULES = """\
{indent}x-kubernetes-validations: # duration {bounds}
{indent}  - rule: self.matches('.') && self.matches('{pattern}')
{indent}    message: "must be a duration like {examples}"
{indent}  - rule: >-
{indent}      !(self.matches('.') && self.matches('{pattern}'))
{indent}      || [{days}
{indent}      {rest}].all(ms, {within})
{indent}    message: "{message}"
"""


def crds() -> dict[str, str]:
    """File name in crds/ -> its text with up-to-date rules."""
    return {path.name: _MARKED.sub(_rules, path.read_text()) for path in sorted(CRDS.glob("*.yaml"))}


def _rules(mark: re.Match[str]) -> str:
    low, high = mark["low"], mark["high"]
    bounds = [("ms >= {}", low), *([("ms <= {}", high)] if high else [])]
    short = high and parse_duration(high, "") < timedelta(hours=1)
    return _RULES.format(
        examples="30s, 2m or 1m30s" if short else "72h, 3d or 1h30m",
        indent=mark[1],
        bounds=" ".join(bound for _, bound in bounds),
        pattern=f"^{DURATION.pattern}$",
        days=_MILLISECONDS[0],
        rest=_MILLISECONDS[1],
        within=" && ".join(text.format(int(parse_duration(b, "").total_seconds() * 1000)) for text, b in bounds),
        message=f"must be from {low} to {high}" if high else f"must be at least {low}",
    )
