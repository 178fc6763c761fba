"""What the messages of a reason are made of, by the source of the package."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import group_hygiene
from group_hygiene.model import reasons

PACKAGE = Path(group_hygiene.__file__).parent
_NAMES = {name: value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str)}


@cache
def insertions() -> dict[str, set[str]]:
    """Of each reason, the expressions that its messages contain, wherever a reason and a message stand side by side.

    Literal text is left out. A message in a variable is what its function assigns to it.
    """
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        constants = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
        for scope in (*functions, *constants):
            for reason, message in _pairs(scope):
                found.setdefault(reason, set()).update(_parts(message, scope, frozenset()))
    return found


def _pairs(function: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """A reason, and the expression after it: arguments of a call, elements of a tuple, or keywords."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            rows = node.args
            named = {keyword.arg: keyword.value for keyword in node.keywords}
            if "reason" in named and "message" in named:
                yield from ((reason, named["message"]) for reason in _reasons(named["reason"]))
        elif isinstance(node, ast.Tuple):
            rows = node.elts
        else:
            continue
        for first, second in itertools.pairwise(rows):
            if not any(_reasons(second)):
                yield from ((reason, second) for reason in _reasons(first))


def _reasons(node: ast.expr) -> Iterator[str]:
    """The reasons that an expression may be."""
    if isinstance(node, ast.IfExp):
        yield from _reasons(node.body)
        yield from _reasons(node.orelse)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "reasons":
        yield _NAMES[node.attr]


def _parts(node: ast.expr, function: ast.AST, seen: frozenset[str]) -> set[str]:
    if isinstance(node, ast.Constant | ast.Dict):
        return set()
    if isinstance(node, ast.JoinedStr):
        return set().union(*(_parts(value, function, seen) for value in node.values))
    if isinstance(node, ast.FormattedValue):
        return _parts(node.value, function, seen)
    if isinstance(node, ast.BinOp):
        return _parts(node.left, function, seen) | _parts(node.right, function, seen)
    if isinstance(node, ast.IfExp):
        return _parts(node.body, function, seen) | _parts(node.orelse, function, seen)
    if isinstance(node, ast.Name) and node.id not in seen:
        assigned = [
            part.value
            for part in ast.walk(function)
            if isinstance(part, ast.Assign | ast.AugAssign)
            and any(
                isinstance(target, ast.Name) and target.id == node.id
                for target in (part.targets if isinstance(part, ast.Assign) else [part.target])
            )
        ]
        texts = [value for value in assigned if isinstance(value, ast.Constant | ast.JoinedStr | ast.BinOp | ast.IfExp)]
        if assigned and len(texts) == len(assigned):
            return set().union(*(_parts(value, function, seen | {node.id}) for value in texts))
    return {ast.unparse(node)}
