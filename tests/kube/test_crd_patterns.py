"""Patterns of names, good and bad: the API server and the commands judge each alike, and say the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import CustomObjectsApi

from group_hygiene.cli.manifests import read_manifests
from group_hygiene.errors import UsageError
from tests.kube.test_crds import Object, a_connection, a_policy, access, complaints, owners

REGULAR = r"must not be a regular expression (\. \^ \$ \( \[ \? \| are literal): "
ESCAPE = r"must have one of * \ { ^ $ ( [ . ? | ! after each backslash, which makes it literal: \* is a star"
NAMES = r"must have no other name in braces than {uuid}, {digits}, {hex}, {date}; \{ is a brace"
NAMES_OF_TENANTS = r"must have no other name in braces than {uuid}, {digits}, {hex}, {date}, {namespace}; \{ is a brace"
CLASS = "must have a separator, like -, between a placeholder and a character that it takes"
SPACE = "must not begin or end with a space"
NEGATED = r"must not begin with ! (\! is literal): no pattern is negated"
BOUND = "must have {namespace} once, like {namespace}.* or team-{namespace} (after it nothing or one of . _ /"
MANY = "must have at most 4 placeholders"
ONE_EACH = f"{REGULAR}write one pattern for each alternative"
STAR = f"{REGULAR}* matches any characters, {{digits}} digits"


def meant(pattern: str) -> str:
    return f'{REGULAR}did you mean "{pattern}"?'


# A pattern of group ids -> what is wrong with it; "" = nothing.
PATTERNS: list[tuple[str, str]] = [
    ("*", ""),
    ("payments", ""),
    ("payments-*", ""),
    ("*-prod", ""),
    ("*-prod-*", ""),
    ("a*b*c", ""),
    ("orders.v1.*", ""),
    ("größe.*", ""),
    ("word.*", ""),
    ("a.b.c", ""),
    (r"word\.*", ""),
    (r"*\.*", ""),
    (r"a-\.*", ""),
    (r"a\*b\\c", ""),
    (r"\^a\$", ""),
    ("a^b$c", ""),
    ("a(b", ""),
    ("a)b(c", ""),
    (r"a\(b)", ""),
    (r"a\(b\|c)", ""),
    (r"a\|b\?", ""),
    (r"\!a", ""),
    ("a!b", ""),
    (r"\[team]-*", ""),
    (r"\[a-z]", ""),
    ("a[b", ""),
    (r"a\\d+", ""),
    ("/app/", ""),
    ("/a^b/", ""),
    ("a-z]", ""),
    ("a b", ""),
    ("word.+", ""),
    (r"-\.+", ""),
    (r"a\[b]+", ""),
    ("a]+", ""),
    ("a+b", ""),
    ("a}b", ""),
    ("a,3}", ""),
    (r"a\{3}", ""),
    ("{digits}-{hex}-{uuid}-{date}", ""),
    (r"{digits}-{digits}-{digits}-{digits}-\{digits}", ""),
    (r"\{uuid}", ""),
    (r"a\{", ""),
    ("{uuid}", ""),
    ("anonymous.{uuid}", ""),
    ("etl-{uuid}-0", ""),
    ("perf-consumer-{digits}", ""),
    ("{digits}*", ""),
    ("{uuid}.*", ""),
    ("{digits}-{hex}", ""),
    ("{date}T{digits}", ""),
    ("a-{hex}g", ""),
    ("node{hex}", ""),
    ("v1{digits}", ""),
    ("*-{digits}", ""),
    ("a\nb", ""),
    ("😀*", ""),
    ("", "must not be empty"),
    (r"a\b", ESCAPE),
    ("a\\", ESCAPE),
    (r"\d-*", STAR),
    (r"payments-\w", STAR),
    (r"payments-\w+", meant("payments-*")),
    (r"payments-\w*$", meant("*payments-*")),
    (r"app-\d+", meant("app-{digits}")),
    (r"app-\d*-\w+", meant("app-*-*")),
    (r"^app-\d+$", meant("app-{digits}")),
    (r"app-.\w+", STAR),
    (r"1\d+", STAR),
    (r"\d+\d+", STAR),
    (r"[0-9]+\d+", STAR),
    (r"a\s-\S+", STAR),
    ("payments-.{3}", STAR),
    ("a{3}", STAR),
    ("a{3,}", STAR),
    ("a{3,5}-*", STAR),
    (r"\d{4}", STAR),
    ("app-[0-9]{3}", STAR),
    ("/^app/", STAR),
    ("/app$/", STAR),
    ("(payments)-*", STAR),
    ("(abc)+", STAR),
    ("a(b)", STAR),
    ("a()", STAR),
    (r"a(\(b)", STAR),
    ("team-[ab]-*", ONE_EACH),
    ("payments-[ab]-*", ONE_EACH),
    ("app-[abc]", ONE_EACH),
    ("[team]-*", ONE_EACH),
    ("a[b]", ONE_EACH),
    ("a[b]-*", ONE_EACH),
    ("app-[abc]+", STAR),
    ("[-a]", STAR),
    ("a[]", STAR),
    ("^wordcount$", meant("wordcount")),
    ("^payments-*", meant("payments-*")),
    ("wordcount$", meant("*wordcount")),
    ("^wordcount", meant("wordcount*")),
    ("^.*-prod", meant("*-prod*")),
    ("-prod.*$", meant("*-prod*")),
    ("^payments-.*$", meant("payments-*")),
    ("payments-.*", meant("payments-*")),
    ("payments_.*", meant("payments_*")),
    (".*", meant("*")),
    (".*-prod", meant("*-prod")),
    ("a-.*-b", meant("a-*-b")),
    ("a..*", STAR),
    ("a-..*", STAR),
    ("^a-.", STAR),
    (".+", meant("*")),
    ("payments-.+", meant("payments-*")),
    ("payments-.+-.*", meant("payments-*-*")),
    ("*.*", meant("*")),
    ("app-[0-9]+", meant("app-{digits}")),
    ("app-[0-9]*-.*", meant("app-*-*")),
    ("payments-[0-9]*", meant("payments-*")),
    ("app.[0-9]*", meant("app.*")),
    ("app-.[0-9]*", STAR),
    (".*1[0-9]+", STAR),
    ("a-[0-9]+5", STAR),
    ("a-[0-9]+[0-9]+", STAR),
    ("größe-.*", STAR),
    (r"payments\..*", STAR),
    ("team-(a|b)-*", ONE_EACH),
    ("^(a|b)$", ONE_EACH),
    ("((a)|b)", ONE_EACH),
    ("team-[a-z]+", STAR),
    ("[a-z0-9]*", STAR),
    ("^a?$", STAR),
    ("a?", STAR),
    ("https?-*", STAR),
    ("a|b", ONE_EACH),
    ("a(b|c", ONE_EACH),
    (r"a\(b|c)", ONE_EACH),
    ("team-[a-z]", STAR),
    ("team-[0-9]{digits}", STAR),
    ("[a-z]{uuid}", STAR),
    ("app-[0-9]", STAR),
    ("app-[0-9a-f]*-x", STAR),
    ("[^a-z]x", STAR),
    ("app-[0-9]-{digits}", STAR),
    ("!payments-*", NEGATED),
    (" a", SPACE),
    ("a-* ", SPACE),
    ("a\n", SPACE),
    ("\u00a0a", SPACE),
    ("a\u3000", SPACE),
    (" ", SPACE),
    ("^", STAR),
    ("$", STAR),
    ("^^a", STAR),
    ("{uid}", NAMES),
    ("{UUID}", NAMES),
    ("{}", NAMES),
    ("a{", NAMES),
    ("a{,3}", NAMES),
    ("{digits}-{digits}-{digits}-{digits}-{digits}", MANY),
    ("a-{hex}*{hex}-*-{uuid}*{hex}--{date}*{hex}*", MANY),
    ("{namespace}.*", NAMES),
    ("{group}", NAMES),
    ("{digits}5", CLASS),
    ("{digits}{hex}", CLASS),
    ("{hex}a*", CLASS),
    ("{hex}{digits}", CLASS),
    ("{uuid}f", CLASS),
    ("{date}1", CLASS),
    ("*1{digits}", CLASS),
    ("*a{hex}*", CLASS),
]
# The same of patterns of a connection's tenants.
OF_TENANTS: list[tuple[str, str]] = [
    ("{namespace}", ""),
    ("{namespace}.*", ""),
    ("{namespace}_*", ""),
    ("{namespace}/{uuid}", ""),
    ("team-{namespace}.*", ""),
    ("a.{namespace}.b-*-c", ""),
    ("svc-{namespace}", ""),
    ("*.{namespace}", ""),
    (r"*\.{namespace}", ""),
    (r"{namespace}\.*", ""),
    (r"\{namespace}-*", ""),
    ("{digits}-{namespace}.*", ""),
    ("{namespace}-*", BOUND),
    ("{namespace}*", BOUND),
    ("{namespace}a", BOUND),
    ("*{namespace}.a", BOUND),
    ("*-{namespace}", BOUND),
    ("*.{namespace}.*", BOUND),
    ("{namespace}.{namespace}", BOUND),
    ("{hex}{namespace}", CLASS),
    ("{name}.*", NAMES_OF_TENANTS),
    ("{namespace}.{hex}.{hex}.{hex}.*", ""),
    ("{namespace}.{hex}.{hex}.{hex}.{hex}", MANY),
]


def _policy(**match: Any) -> Object:
    return a_policy({"match": match})


def _stale(**settings: Any) -> Object:
    return a_policy({"deleteOffsets": settings, "action": "DeleteOffsets", "when": {"idleFor": "96h"}})


# Each field with patterns: its path, the object with this pattern, and whether the patterns are about tenants.
FIELDS: dict[str, tuple[Callable[[str], Object], bool]] = {
    "spec.match.groups[0]": (lambda pattern: _policy(groups=[pattern]), False),
    "spec.match.exclude[0]": (lambda pattern: _policy(exclude=[pattern]), False),
    "spec.deleteOffsets.topics[0]": (lambda pattern: _stale(topics=[pattern]), False),
    "spec.deleteOffsets.excludeTopics[0]": (lambda pattern: _stale(excludeTopics=[pattern]), False),
    "spec.protect[0]": (lambda pattern: a_connection({"protect": [pattern]}), False),
    "spec.access[0].groups[0]": (lambda pattern: a_connection(access(groups=[pattern])), True),
    "spec.owners[0].groups[0]": (lambda pattern: a_connection(owners(groups=[pattern])), True),
}
_ONE_OF_EACH = [("a-*", ""), ("payments-.*", meant("payments-*")), (r"a\b", ESCAPE), ("{hex}a", CLASS)]
_ONE_OF_EACH += [("a-[bc]", ONE_EACH), ("a{3}", STAR), (r"a-\d+", meant("a-{digits}")), ("{hex}-" * 5, MANY)]
CASES = [
    *((field, *case) for field in ("spec.protect[0]",) for case in PATTERNS),
    *(("spec.access[0].groups[0]", *case) for case in OF_TENANTS),
    *((field, *case) for field in FIELDS for case in _ONE_OF_EACH),
    *((field, "{other}", NAMES_OF_TENANTS if tenants else NAMES) for field, (_, tenants) in FIELDS.items()),
    ("spec.owners[0].groups[0]", "{namespace}-*", BOUND),
]


@pytest.mark.parametrize(("field", "pattern", "problem"), [pytest.param(*c, id=f"{c[0]}-{c[1]}") for c in CASES])
def test_api_server_and_commands_agree(
    api: CustomObjectsApi, tmp_path: Path, field: str, pattern: str, problem: str
) -> None:
    """A bad pattern gets one message, about its field, with the pattern that is probably meant where that is known."""
    candidate = FIELDS[field][0](pattern)
    said = complaints(api, candidate)
    file = tmp_path / "object.yaml"
    file.write_text(yaml.safe_dump(candidate, allow_unicode=True))
    if not problem:
        assert said == []
        read_manifests([str(file)], policy_needed=False)
        return
    assert len(said) == 1, said
    assert said[0].startswith(field)
    assert problem in said[0]
    with pytest.raises(UsageError) as refused:
        read_manifests([str(file)], policy_needed=False)
    (line,) = str(refused.value).splitlines()[1:]
    assert f"{field}: {problem}" in line
