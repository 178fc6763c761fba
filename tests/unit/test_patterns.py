"""Patterns of names: what they match, what they refuse and say, and what covers what."""

import re
import string
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from group_hygiene.errors import SpecError
from group_hygiene.model.groups import ID_MAX
from group_hygiene.spec.patterns import PLACEHOLDERS, Patterns, TenantPatterns, check_pattern

UUID = "123e4567-e89b-12D3-a456-426614174000"


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        pytest.param("a-*", ["a-", "a-b"], ["a", "ba-"], id="star"),
        pytest.param(r"a\*", ["a*"], ["a", "ab", r"a\*"], id="literal-star"),
        pytest.param(r"\{uuid}", ["{uuid}"], [UUID], id="literal-brace"),
        pytest.param("a}b", ["a}b"], ["a"], id="closing-brace"),
        pytest.param(r"\^a\$b\(c\|d)\[e]+\.*", ["^a$b(c|d)[e]+.", "^a$b(c|d)[e]+.f"], ["ab"], id="literal-others"),
        pytest.param("a-{uuid}", [f"a-{UUID}", f"a-{UUID.upper()}"], [f"a-{UUID}0", "a-", f"a-{UUID[1:]}"], id="uuid"),
        pytest.param("a-{uuid}-0", [f"a-{UUID}-0"], [f"a-{UUID}"], id="uuid-inside"),
        pytest.param("a{digits}", ["a0", "a0123"], ["a", "a0b", "a٣"], id="digits"),
        pytest.param("a-{hex}", ["a-0fF"], ["a-", "a-g", "a-0f-"], id="hex"),
        pytest.param(
            "a-{date}",
            ["a-2026-11-27", "a-20261127"],
            ["a-2026-1127", "a-2026-13-01", "a-2026-11-32", "a-202611270", "a-26-11-27"],
            id="date",
        ),
        pytest.param("{digits}*b", ["1b", "1cb", "12b"], ["b1b"], id="star-behind-digits"),
        pytest.param("*{digits}", ["1", "a1", "a1b2"], ["a", "1a"], id="star-before-digits"),
        pytest.param("*-{hex}-*", ["a-b-", "a-x-b-c"], ["a-x-", "-x-y"], id="hex-between-stars"),
        pytest.param("*{digits}x*{digits}", ["1x1", "1y2x3"], ["1x", "1y1"], id="digits-twice"),
        pytest.param("v1{digits}x", ["v12x", "v112x"], ["v1x", "v12"], id="text-of-the-same-class-before"),
        pytest.param("a1*{digits}x", ["a111x", "a1b1x"], ["a1x", "a11"], id="star-within-a-run"),
        pytest.param("*{uuid}", [UUID, f"0{UUID}"], [f"{UUID}0"], id="uuid-at-the-end"),
    ],
)
def test_what_a_pattern_matches(pattern: str, matching: list[str], others: list[str]) -> None:
    """Only whole names; case matters, but for a UUID's and hexadecimal digits."""
    patterns = Patterns([pattern])
    assert [name for name in matching if not patterns.matches(name)] == []
    assert [name for name in others if patterns.matches(name)] == []


_TEXT = st.text("a1f-.{", max_size=6)
_PARTS = st.sampled_from(["*", "{digits}", "{hex}", "{date}", "{uuid}", "-", "a", "1", ".", r"\{", "x"])


@st.composite
def _sources(draw: st.DrawFn) -> str:
    """A valid pattern."""
    source = ""
    for part in draw(st.lists(_PARTS, min_size=1, max_size=6)):
        try:
            check_pattern(source + part)
        except SpecError:
            continue
        source += part
    return source or "*"


@st.composite
def _names(draw: st.DrawFn, source: str) -> str:
    """A name that often matches this pattern."""
    texts = {
        "*": _TEXT,
        "{digits}": st.text("01", max_size=3),
        "{hex}": st.text("1aF", max_size=3),
        r"\{": st.just("{"),
    }
    texts |= {"{uuid}": st.just(UUID), "{date}": st.sampled_from(["2026-11-27", "20261127"])}
    return "".join(draw(texts.get(token, st.just(token))) for token in _tokens(source))


def _tokens(source: str) -> list[str]:
    return re.findall(r"\\.|\*|\{[a-z]+\}|[^\\*{]", source)


def slow_match(tokens: list[str], name: str) -> bool:
    """As the documentation says it: a star tries everything, and a placeholder takes the longest text that it may."""
    if not tokens:
        return not name
    token, rest = tokens[0], tokens[1:]
    if token == "*":
        return any(slow_match(rest, name[at:]) for at in range(len(name) + 1))
    if token[0] == "{":
        fits = re.compile(PLACEHOLDERS[token[1:-1]]).fullmatch
        lengths = [length for length in range(len(name), 0, -1) if fits(name[:length])]
        return bool(lengths) and slow_match(rest, name[lengths[0] :])
    return name.startswith(token[-1]) and slow_match(rest, name[1:])


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_matches_as_the_slow_reference(data: st.DataObject) -> None:
    """Whatever the pattern and the name are."""
    source = data.draw(_sources())
    name = data.draw(st.one_of(_names(source), _names(data.draw(_sources())), _TEXT))
    assert Patterns([source]).matches(name) is slow_match(_tokens(source), name)


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_covers_is_never_wrong(data: st.DataObject) -> None:
    """If a pattern covers another one, it matches each name that the other one matches."""
    wide, narrow = data.draw(_sources()), data.draw(_sources())
    patterns = Patterns([wide])
    if patterns.covers(narrow):
        name = data.draw(_names(narrow))
        assert patterns.matches(name) or not Patterns([narrow]).matches(name)


@pytest.mark.parametrize(
    ("wide", "narrow", "covered"),
    [
        pytest.param("a-*", "a-{uuid}", True, id="star-over-placeholder"),
        pytest.param("a-{uuid}", "a-{uuid}", True, id="the-same"),
        pytest.param("a-{uuid}", f"a-{UUID}", True, id="placeholder-over-text"),
        pytest.param("a-{digits}", "a-*", False, id="placeholder-over-star"),
        pytest.param("{digits}*5", "1*5", False, id="the-placeholder-takes-more"),
        pytest.param("a-{hex}", "a-{digits}", False, id="not-sure"),
        pytest.param("{digits}", "a{digits}", False, id="another-pattern"),
    ],
)
def test_covers(wide: str, narrow: str, covered: bool) -> None:
    """Where it is not sure, it says no."""
    assert Patterns([wide]).covers(narrow) is covered


_HOSTILE = """
import resource
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
from group_hygiene.errors import SpecError
from group_hygiene.spec import patterns as module
from group_hygiene.spec.patterns import Patterns, check_pattern
# Longer ids than those that are searched show whether the time is linear.
module.ID_MAX = 40_000
def none_matches(pattern, part):
    patterns = Patterns([pattern + f"*q{i}*" for i in range(8)])
    assert not any(patterns.matches(part * (32_000 // len(part)) + "z" * i) for i in range(10))
none_matches("*{digits}x", "1")
none_matches("*-{digits}-{hex}x", "-1")
none_matches("*{hex}x*{hex}y", "1")
none_matches("{hex}*{hex}*{hex}*{hex}x", "a-")
none_matches("*" + "-" * 200 + "{hex}x", "-")
none_matches("*{uuid}x", "123e4567-e89b-12d3-a456-426614174000")
none_matches("*{date}x", "20261127")
for text in "* ( [ ] | (| () [] a.* .* { {3} {hex}- {namespace}. -{namespace} \\\\* \\\\.* \\\\d+".split():
    for end in ("", "{x}", ")", "+"):
        for _ in range(100):
            try:
                check_pattern((text * 255)[:250] + end, of_tenants=True)
            except SpecError:
                pass
"""


def test_placeholders_cost_little() -> None:
    """Eight patterns of each kind against ten of the longest names, and 100 refusals of long patterns that look like
    regular expressions: quadratic time would take minutes each.
    """
    done = subprocess.run([sys.executable, "-c", _HOSTILE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@given(
    st.one_of(
        st.text("a1-.*+[09]^$", min_size=1, max_size=12),
        st.lists(
            st.sampled_from(["a", "1", "-", ".", "*", "+", r"\d+", r"\w+", r"\d*", r"\w*", "[0-9]+"]), min_size=1
        ).map("".join),
    )
)
@settings(max_examples=1000)
def test_a_suggested_pattern_is_accepted(pattern: str) -> None:
    """Whatever it is suggested for."""
    try:
        check_pattern(pattern)
    except SpecError as error:
        suggested = re.search(r'did you mean "(.*)"\?$', str(error), re.DOTALL)
        if suggested:
            check_pattern(suggested[1])


@given(
    st.lists(st.text(string.punctuation + "a1\n\x00", max_size=8).filter(lambda name: name == name.strip()), max_size=5)
)
def test_patterns_of_names_can_be_read_again(names: list[str]) -> None:
    """Names are data from Kafka: each is escaped so that it stands for itself only."""
    exact = Patterns.of_names(names)
    again = Patterns([source for source in exact.sources if source])
    assert all(exact.matches(name) and (again.matches(name) or not name) for name in names)
    assert not again.matches("a1 and more")


@pytest.mark.parametrize(
    ("pattern", "matching", "others", "namespace"),
    [
        pytest.param("{namespace}.*", ["pay.a", "pay.a.b"], ["pay-ledger.a", "pay", "a.pay.b"], "pay", id="prefix"),
        pytest.param("v1-{namespace}_*", ["v1-pay_a"], ["v1-pay-ledger_a"], "pay", id="after-text"),
        pytest.param("svc-{namespace}", ["svc-pay"], ["svc-pay-ledger", "svc-pay.a"], "pay", id="at-the-end"),
        pytest.param("*.{namespace}", ["a.pay", "a.b.pay"], ["a.b-pay", "a.pay.b", "pay"], "pay", id="last-part"),
        pytest.param(r"a/{namespace}/{uuid}", [f"a/pay/{UUID}"], ["a/pay/1"], "pay", id="with-uuid"),
    ],
)
def test_namespace_in_a_pattern(pattern: str, matching: list[str], others: list[str], namespace: str) -> None:
    """A namespace gets no group that has another namespace's name in that place, and the owner is found by it."""
    patterns = TenantPatterns([pattern])
    ours = patterns.of_namespace(namespace)
    assert [ours.matches(name) for name in matching] == [True] * len(matching)
    assert [ours.matches(name) for name in others] == [False] * len(others)
    assert [patterns.namespace_of(name) for name in matching] == [namespace] * len(matching)
    other = patterns.of_namespace("pay-ledger")
    assert not any(ours.matches(name) and other.matches(name) for name in [*matching, *others])


@given(st.text("a-", min_size=1, max_size=5), st.text("a-", min_size=1, max_size=5), st.text("a-._/", max_size=12))
def test_two_namespaces_share_no_group(one: str, other: str, name: str) -> None:
    """Whatever their names are: of all valid patterns with {namespace}, whatever stands before and after it."""
    names = [text.strip("-") or "a" for text in (one, other)]
    if names[0] == names[1]:
        return
    for source in (
        "{namespace}",
        "{namespace}.*",
        "{namespace}_a*",
        "a-{namespace}/*",
        "*.{namespace}",
        "*/{namespace}",
    ):
        patterns = TenantPatterns([source])
        assert not all(patterns.of_namespace(namespace).matches(name) for namespace in names)


def test_each_placeholder_is_documented() -> None:
    """The page on patterns has a row for each, and one for {namespace}."""
    page = (Path(__file__).parents[2] / "docs" / "patterns.md").read_text()
    assert set(re.findall(r"^\| `\{(\w+)\}` \|", page, re.MULTILINE)) == {*PLACEHOLDERS, "namespace"}


def test_lists_of_tenants_are_small() -> None:
    """Policies of tenants are held as long as a round takes. A compiled expression for each piece took 2.8 MB each."""
    lists = [[f"{i}-" + "{date}abcd*" * 22 + str(j) for j in range(64)] for i in range(100)]
    held = sum(map(len, lists[0]))
    tracemalloc.start()
    made = [Patterns(each) for each in lists]
    assert not any(patterns.matches("perf-consumer-20261130") for patterns in made)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held > 15_000
    # The texts are those of `lists`. At most 1 MiB of them is held in pieces.
    assert size < 30 << 20
    assert all(patterns.matches(f"{i}-" + "20261130abcdx" * 22 + "63") for i, patterns in enumerate(made))


def test_names_of_a_command_stay_split() -> None:
    """They may be more than all lists of patterns together; each of them would make the others split theirs again."""
    names = Patterns.of_names(f"group-{number:07}-{'x' * 20}" for number in range(40_000))
    others = [Patterns([f"team-{number}-*-{'y' * 200}"]) for number in range(50)]
    assert names.matches("group-0000001-" + "x" * 20)
    held = names._held
    for patterns in others:
        assert not patterns.matches("group-1")
    assert names._held is held
    assert all(patterns._held is not None for patterns in others)


def test_ids_that_are_too_long_are_not_searched() -> None:
    """Groups with such ids are never judged; what costs nothing matches all the same."""
    name = "team-a-" + "x" * ID_MAX
    assert Patterns(["team-a-*"]).matches(name)
    assert Patterns([name]).matches(name)
    assert not Patterns(["team-*-x*"]).matches(name)
    assert Patterns(["team-*-x*"]).matches(name[:ID_MAX])
