"""docs/kinds/: one page per kind, from its CRD in crds/ and the prose in docsite/kinds/. No I/O except reading these.

A line `@word ...` of the prose is replaced:

    @example FILE KIND   the documents of that kind in examples/FILE
    @columns             the columns of `kubectl get`
    @fields NAME         the fields of spec or status
    @rules               the validation rules of the API server
    @reasons CONDITION   the reasons of that condition, from docsite/reasons.yaml
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import yaml

from docsite.markdown import plain, table
from docsite.reason_page import reasons
from docsite.schema import Field, Kind, fields, parse_kind, rules

ROOT = Path(__file__).parents[1]
_PROSE = Path(__file__).parent / "kinds"
_NOTICE = "<!-- Made by `make docs` of crds/{crd} and docsite/kinds/{prose}: edit these. -->\n\n"


def pages() -> dict[str, str]:
    """Path below docs/ -> text, of each kind."""
    found = {}
    for crd in sorted((ROOT / "crds").glob("*.yaml")):
        kind = parse_kind(yaml.safe_load(crd.read_text()))
        prose = _PROSE / f"{kind.name.lower()}.md"
        text = re.sub(r"^@(\w+)(?: (.+))?$", partial(_made, kind), prose.read_text(), flags=re.M)
        title, rest = text.split("\n\n", 1)
        notice = _NOTICE.format(crd=crd.name, prose=prose.name)
        # Below the title: mkdocs takes the title from the first line.
        found[f"kinds/{kind.name.lower()}.md"] = f"{title}\n\n{notice}{rest}"
    return found


def reasons_of(condition: str) -> list[str]:
    """The reasons that a condition can have."""
    return [reason.name for reason in reasons() if condition in reason.where]


def _made(kind: Kind, match: re.Match[str]) -> str:
    makers: dict[str, Callable[[Kind, str], str]] = {
        "example": _example,
        "columns": _columns,
        "fields": _fields,
        "rules": _rules,
        "reasons": _reasons,
    }
    return makers[match[1]](kind, match[2] or "").rstrip("\n")


def _example(kind: Kind, words: str) -> str:
    """The unchanged text, with comments."""
    file, name = words.split()
    documents = (ROOT / "examples" / file).read_text().split("\n---\n")
    chosen = [text.strip("\n") for text in documents if yaml.safe_load(text)["kind"] == name]
    text = "\n---\n".join(chosen)
    return f"[examples/{file}](../../examples/{file}):\n\n```yaml\n{text}\n```"


def _columns(kind: Kind, _: str) -> str:
    rows = []
    for column in kind.columns:
        name = column["name"] + (" (with `-o wide`)" if column.get("priority") else "")
        rows.append([name, f"`{column['jsonPath'].lstrip('.')}`", plain(column.get("description", ""))])
    return table(["Column", "Field", "Description"], rows)


def _fields(kind: Kind, name: str) -> str:
    """A section for each field with fields below it, and one table for the others."""
    top = kind.schema["properties"][name]
    text = plain(" ".join(top["description"].split())) + "\n\n"
    required = top.get("required", ())
    every = {child: list(fields(schema, child, child in required)) for child, schema in top["properties"].items()}
    text += _table([of_child[0] for of_child in every.values()])
    for child, of_child in every.items():
        if len(of_child) > 1:
            text += f"\n### {name}.{child}\n\n" + _table(of_child[1:])
    return text


def _table(shown: list[Field]) -> str:
    return table(["Field", "Type", "Description"], [[f"`{f.path}`", _type(f), _about(f)] for f in shown])


def _type(field: Field) -> str:
    return field.type + (", required" if field.required else "")


def _about(field: Field) -> str:
    default = () if field.default is None else (f"default `{field.default}`",)
    limits = "; ".join((*default, *field.limits))
    return plain(" ".join(field.description.split())) + (f"\n*{limits}*" if limits else "")


def _rules(kind: Kind, _: str) -> str:
    """Each message once, with its fields: many fields share a rule. The expressions are in the CRD."""
    found: dict[str, list[str]] = {}
    for rule in rules(kind.schema["properties"]["spec"], "spec"):
        places = found.setdefault(rule.message, [])
        places += [] if rule.path + rule.at in places else [rule.path + rule.at]
    lines = (f"- **{plain(text)}**: {', '.join(f'`{place}`' for place in places)}\n" for text, places in found.items())
    return "".join(lines)


def _reasons(_: Kind, condition: str) -> str:
    return ", ".join(f"`{reason}`" for reason in reasons_of(condition)) + "."
