"""The patterns of group names: unused groups are found by the names alone, and names that people gave stay apart."""

from __future__ import annotations

import random
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from group_hygiene.pipeline.name_patterns import patterned, too_general
from group_hygiene.spec.crds import WHITE_SPACE
from group_hygiene.spec.patterns import Patterns

# As Kubernetes names pods.
SAFE = "bcdfghjklmnpqrstvwxz2456789"
LETTERS = string.ascii_letters + string.digits


class Kind(NamedTuple):
    """Names, and the patterns that they must have, in the same order; or the one that all have."""

    names: Sequence[str]
    patterns: Sequence[str] | str = ()

    @property
    def expected(self) -> dict[str, str]:
        patterns = [self.patterns] * len(self.names) if isinstance(self.patterns, str) else self.patterns
        return dict(zip(self.names, patterns or self.names, strict=True))


def uuids(count: int, seed: int) -> list[str]:
    made = random.Random(seed)
    return [str(UUID(int=made.getrandbits(128), version=4)) for _ in range(count)]


def tokens(count: int, alphabet: str, length: int, seed: int) -> list[str]:
    made = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(made.choices(alphabet, k=length))] = None
    return list(found)


def words(count: int, seed: int) -> list[str]:
    return tokens(count, string.ascii_lowercase, 7, seed)


KINDS = {
    "uuid": Kind([f"uuid.etl-{it}" for it in uuids(3, 1)], "uuid.etl-*"),
    "uuid-upper-case": Kind([f"uuid-up-{it.upper()}-run" for it in uuids(3, 2)], "uuid-up-*-run"),
    "uuid-without-dashes": Kind([f"uuid_bare_{it.replace('-', '')}" for it in uuids(3, 3)], "uuid_bare_*"),
    "uuid-glued-to-a-word": Kind([f"uuidglued{it}" for it in uuids(3, 4)], "uuidglued*"),
    "two-uuids": Kind(["uuid-two-" + "-".join(uuids(2, seed)) for seed in (5, 6)], "uuid-two-*"),
    "hex": Kind(["hex-7f3a9b2c", "hex-0a1b2c3d4e", "hex-1234abcd5678ef90"], "hex-*"),
    "hex-upper-case": Kind(["hexup-7F3A9B2C", "hexup-0A1B2C3D4E"], "hexup-*"),
    "hex-long-without-digits": Kind(["hexlong-" + "abcdefab" * 2, "hexlong-" + "fedcbafe" * 2], "hexlong-*"),
    "hex-that-is-a-word": Kind(["hexword-deadbeef", "hexword-facade"]),
    "decimal": Kind(["console-consumer-12345", "console-consumer-98765"], "console-consumer-*"),
    "decimal-glued-to-a-word": Kind(["decimal-consumer12345", "decimal-consumer54321"], "decimal-consumer*"),
    "date": Kind(["date-2026-11-20", "date-2026-11-21"], "date-*"),
    "date-with-time": Kind(["stamp_2026-11-20T10:11:12Z_a", "stamp_2026-11-21T01:02:03.456Z_a"], "stamp_*_a"),
    "date-without-dashes": Kind(["bare.20261120", "bare.20261121"], "bare.*"),
    "version-that-is-no-date": Kind(["version-2026-13", "version-2026-14"]),
    "timestamp": Kind(["millis-1763640000000", "millis-1763640000001"], "millis-*"),
    "anonymous": Kind([f"anonymous.{it}" for it in ("Xk3jd9aBq", "a7Bq2kD9x", "Zz1yY2xX3")], "anonymous.*"),
    "anonymous-base64": Kind(
        ["my.anonymous.8EmrGYSdTTq-pCVDVAzpjg", "my.anonymous.a_b-CdefGhijKlmnOpqrst"], "my.anonymous.*"
    ),
    "pod": Kind(["pod-7c9f8d6b5d-x2x7k", "pod-7c9f8d6b5d-bkzrt", "pod-66bd8bfdf-9zzcl"], "pod-*"),
    "pod-of-a-job": Kind(["podjob-x2x7k", "podjob-4zq9w"], "podjob-*"),
    "few-words": Kind(["few-eu", "few-us", "few.billing.reader", "few.shipping.reader"]),
    "few-versions": Kind(["versions-v1", "versions-v2", "versions-10"]),
    "camel-case": Kind(["CamelOrdersV2Reader", "CamelOrdersV3Reader", "camel.OrdersTopicV2", "camel.OrdersTopicV3"]),
    "alone": Kind([f"alone-{uuids(1, 7)[0]}"]),
    "alone-with-what-must-be-escaped": Kind([r"lone*star\here"], [r"lone\*star\\here"]),
    "alone-like-a-regular-expression": Kind(["!lone?|.+ ", "lone.+"], ["\\!lone\\?\\|\\.+ ", "lone\\.+"]),
    "escaped-beside-a-star": Kind([rf"esc*\{it}" for it in uuids(3, 8)], r"esc\*\\*"),
    "many-words": Kind([f"many-{it}-notebook" for it in words(25, 9)], "many-*-notebook"),
    "not-that-many-words": Kind([f"nineteen-{it}-notebook" for it in words(19, 10)]),
    "words-that-are-elsewhere-too": Kind([f"{it}-{place}" for it in words(25, 11) for place in ("elsea", "elseb")]),
    "many-numbers": Kind([f"number.{it}.eu" for it in range(30)], "number.*.eu"),
    "many-versions": Kind([f"release-v{it}" for it in range(30)], "release-*"),
    "many-in-two-places": Kind([f"grid-{row}-{column}" for row in range(25) for column in range(25)], "grid-*"),
    "few-short-ones-among-the-long": Kind(
        [*(f"mixed-{it}" for it in range(10_000, 10_030)), "mixed-77", "mixed-v2", "mixed-few"],
        [*["mixed-*"] * 30, "mixed-77", "mixed-v2", "mixed-few"],
    ),
    "short-ones-among-the-long": Kind(
        [f"among-{it}" for it in (*range(10_000, 10_030), 1234, 5678)], "among-*"
    ),
    "a-name-that-is-elsewhere-too": Kind(
        [*(f"shared-{it}" for it in words(25, 12)), "shared-reader", "other-shared.reader"],
        [*["shared-*"] * 25, "shared-reader", "other-shared.reader"],
    ),
    "nothing-else-is-left": Kind(uuids(3, 13), "*"),
    "nothing-else-would-be-left": Kind(words(30, 14)),
}  # fmt: skip


def frame(spark: SparkSession, names: Iterable[str]) -> DataFrame:
    return spark.createDataFrame(pa.table({"group": pa.array(names, pa.string())}))


def found(rows: DataFrame) -> dict[str, str]:
    """By group, its pattern."""
    read = patterned(rows).select("group", "pattern").toArrow()
    assert read.num_rows == rows.count()
    return dict(zip(read.column("group").to_pylist(), read.column("pattern").to_pylist(), strict=True))


@pytest.fixture(scope="module")
def patterns(spark: SparkSession) -> dict[str, str]:
    """The patterns of all of KINDS, all at once: no kind may change what comes of another."""
    return found(frame(spark, [name for kind in KINDS.values() for name in kind.names]))


@pytest.mark.parametrize("kind", [pytest.param(kind, id=name) for name, kind in KINDS.items()])
def test_kinds(patterns: dict[str, str], kind: Kind) -> None:
    """What somebody's program made has its maker's pattern, what a person named has its own."""
    assert {name: patterns[name] for name in kind.names} == kind.expected


ODD = ("\\", "*", "\\*", "-", "_", ".", "$1", "\n", "\0", "é", "٣", "😀", "a", "Z9", "12345", "x2x7k", "7f3a9b2c",
       " ", "?", "|", "!", ".+")  # fmt: skip
PIECES = st.sampled_from([*ODD, *uuids(2, 15), "2026-11-20", "anonymous.8EmrGYSdTTq-pCVDVAzpjg"])
HOSTILE = st.one_of(
    st.lists(PIECES, max_size=12).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
)
LONG = [piece * (32_000 // len(piece)) for piece in ("a", "\\", "*", "a-", "7", "a1", "-1234567", "😀", "\n")]


def test_every_pattern_matches_its_own_group(spark: SparkSession) -> None:
    """Whatever the names are: as the operator reads patterns, a group's own matches it. All other columns stay."""
    names = {"", *LONG}

    @settings(max_examples=1500, database=None, derandomize=True, deadline=None)
    @given(HOSTILE)
    def draw(name: str) -> None:
        names.add(name)

    draw()
    # Of some, so many that the names themselves say where a star is to be.
    names |= {f"{name}-{word}" for name in sorted(names)[:20] for word in words(25, 16)}
    rows = frame(spark, sorted(names)).withColumn("other", F.length("group"))
    read = patterned(rows).toArrow().to_pylist()
    assert {row["group"] for row in read} == names
    assert len(read) == len(names)
    assert [row for row in read if row["other"] != len(row["group"])] == []
    assert [row["group"] for row in read if not Patterns([row["pattern"]]).matches(row["group"])] == []
    alone = Counter(row["pattern"] for row in read)
    assert all(row["pattern"] == Patterns.of_names([row["group"]]).sources[0]
               for row in read
               if alone[row["pattern"]] == 1 and "" != row["group"] == row["group"].strip(WHITE_SPACE))  # fmt: skip
    # It says nothing about who has none: some must have had others beside them.
    assert max(alone.values()) > 20


MAKERS = {
    "console-consumer-*": [f"console-consumer-{number}" for number in range(0, 60_000, 3)],
    "etl-*": [f"etl-{it}" for it in uuids(20_000, 20)],
    "anonymous.*": [f"anonymous.{it}" for it in tokens(20_000, LETTERS + "-_", 22, 21)],
    "billing-*": [
        f"billing-{one}-{other}"
        for one, other in zip(tokens(15_000, SAFE, 10, 22), tokens(15_000, SAFE, 5, 23), strict=True)
    ],
    "job-*": [f"job-{it}" for it in tokens(10_000, SAFE, 5, 24)],
    "ksql_*_query": [f"ksql_{it}_query" for it in tokens(10_000, LETTERS, 9, 25)],
    "report-*-load": [f"report-2026-{at % 12 + 1:02}-{at % 28 + 1:02}T{at // 60 % 24:02}:{at % 60:02}-load"
                      for at in range(1000)],
    "notebook-*": [f"notebook-{it}" for it in words(3_964, 26)],
}  # fmt: skip
NAMED = [f"{team}-{part}-{place}" for team in ("orders", "stock", "mail") for part in ("reader", "sync", "audit")
         for place in ("eu", "us", "v1", "v2")]  # fmt: skip


def test_known_makers_among_100_000(spark: SparkSession) -> None:
    """Each maker is one pattern that has all its groups, and no name of a person is in any of them."""
    made = {pattern: set(names) for pattern, names in MAKERS.items()}
    assert sum(map(len, made.values())) + len(NAMED) == 100_000
    rows = frame(spark, [*(name for names in made.values() for name in sorted(names)), *NAMED])
    counts = patterned(rows).groupBy("pattern").count().toArrow().to_pylist()
    expected = {pattern: len(names) for pattern, names in made.items()} | dict.fromkeys(NAMED, 1)
    assert {row["pattern"]: row["count"] for row in counts} == expected


def test_no_name_is_compared_with_each_other(spark: SparkSession) -> None:
    """Twice as many names take twice as long: rows meet by hash, and never all with all."""
    plan = patterned(frame(spark, NAMED))._jdf.queryExecution().toString()
    assert "HashJoin" in plan or "SortMergeJoin" in plan
    assert "Cartesian" not in plan
    assert "NestedLoop" not in plan
    # Nor does any row meet Python.
    assert "Python" not in plan


@pytest.mark.parametrize(
    ("pattern", "general"),
    [
        ("*", True),
        ("a*b", True),
        (r"\*\\*", True),
        ("*-*-", True),
        ("*abc", False),
        ("a*b*c", False),
        (r"\*\\\*", False),
        ("*\n\n\n", False),
        ("😀*😀", True),
    ],
)
def test_too_general(pattern: str, general: bool) -> None:
    """What has fewer than three characters of its own matches what others made."""
    assert too_general(pattern) is general
