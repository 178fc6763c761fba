r"""Finds the patterns of generated group names, in the syntax of `match.groups`. Reads and writes no table.

A part of a name becomes a star if it looks generated (a UUID, a date, a random token), or if names that are equal in
all other parts have very many values there. Spark SQL functions only: no name passes through Python, and names are
grouped by hashes, not compared in pairs.

Names are escaped first (`\` as `\\`, `*` as `\*`), so a star without escape is always a wildcard.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from group_hygiene.errors import SpecError
from group_hygiene.spec.patterns import PLACEHOLDERS, check_pattern

# A position varies if it has this many values, and this share of them has a digit, or occurs nowhere else.
_VALUES = 20
_MOST = 0.8
# For longer names, or names of more parts, only generated-looking parts become stars, or none.
_LENGTH = 500
_PARTS = 12
_LITERALS = 3

# The alphabet of Kubernetes' generated names: no vowels, and no digits that resemble one (rand.SafeEncodeString).
_SAFE = "[bcdfghjklmnpqrstvwxz2456789]"
_HEX = "[0-9a-fA-F]"
_GENERATED = "|".join(
    [
        rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
        # Dates, with or without times.
        r"(?<![0-9])(?:19|20)[0-9]{2}([-_./]?)(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12][0-9]|3[01])"
        r"(?:[T_ -]?[0-2][0-9][-:_]?[0-5][0-9](?:[-:_]?[0-5][0-9])?(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?"
        r"(?![0-9])",
        # Spring Cloud Stream: a UUID in base 64, which may contain separators.
        r"(?<=anonymous\.)[0-9A-Za-z_-]{22}\z",
        # Pods of a Deployment; and of a Job or a DaemonSet, with a digit before a letter.
        rf"(?<=-){_SAFE}{{7,10}}-{_SAFE}{{5}}(?![0-9A-Za-z])",
        rf"(?<=-)(?=[a-z0-9]*[0-9][a-z]){_SAFE}{{5}}\z",
        # Runs of hexadecimal digits, each in one case.
        r"(?<![0-9A-Za-z])(?:0x)?(?:"
        r"(?=[0-9]*+[a-f])(?=[a-f]*+[0-9])[0-9a-f]{8,}+|(?=[0-9]*+[A-F])(?=[A-F]*+[0-9])[0-9A-F]{8,}+"
        r"|[a-f]{16,}+|[A-F]{16,}+)(?![0-9A-Za-z])",
    ]
)
_NUMBER = "[0-9]{5,}+"
# An escaped character; a word, which may contain stars; separators.
_TOKEN = r"\\[\\*]|[*\p{L}\p{N}]++|[^*\p{L}\p{N}\\]++"
_WORD = r"^[*\p{L}\p{N}]"
# Runs within a word of the same kind: `OrdersV2` has three, and so has `a7b`.
_CHUNK = "[A-Z]?[a-z]+|[A-Z]+|[0-9]+"
_VERSION = "^[vV]?[0-9]{1,3}$"
# The first that fits is used. Patterns with more stars get none.
_PLACEHOLDERS = ("uuid", "date", "digits", "hex")
_STARS = 3
_MERGED = r"(\\[\\*])|(\*)(?:[-_.:/@#]?+\*)++"


def patterned(groups: DataFrame) -> DataFrame:
    """These rows with a column `pattern`, which matches their `group` and similar names.

    A name without similar ones is its own pattern. The empty name has `*`, as there is no empty pattern.
    """
    rows = groups.withColumn("_masked", _masked(F.col("group")))
    alike = rows.groupBy("_masked").agg(F.count("*").alias("groups"))
    # By the result of the aggregation, so that no filter below is pushed down under it: a mask is slow to find.
    tokens = F.when(F.col("groups") > 0, F.regexp_extract_all("_masked", F.lit(_TOKEN), F.lit(0)))
    masks = alike.join(_varying(alike.withColumn("tokens", tokens)), "_masked", "left")
    starred = F.transform(tokens, lambda it, at: F.when(F.array_contains("positions", at), "*").otherwise(it))
    pattern = F.when(F.col("positions").isNull(), F.col("_masked")).otherwise(_merged(F.array_join(starred, "")))
    several = F.sum("groups").over(Window.partitionBy(pattern)) > 1
    masks = masks.select("_masked", F.when(several, pattern).alias("_pattern"))
    named = F.when(F.col("group") == "", "*").otherwise(F.coalesce("_pattern", _escaped(F.col("group"))))
    # What a spec would refuse as a placeholder or a regular expression, or at the beginning or end of a pattern.
    literal = F.regexp_replace(named, r"[{^$(\[?|!]", r"\\$0")
    # A name without similar ones stays alone.
    trimmed = F.regexp_replace(literal, r"^[\s\p{Z}\x{85}]+|[\s\p{Z}\x{85}]+$", "*")
    literal = F.when(F.col("_pattern").isNull(), literal).otherwise(trimmed)
    literal = F.regexp_replace(literal, r"(?<![0-9A-Za-z}\x{80}-\x{10FFFF}])\.(?=\*)|\.(?=\+)", r"\\.")
    return rows.join(masks, "_masked", "left").withColumn("pattern", literal).drop("_masked", "_pattern")


def with_placeholders(groups: DataFrame, patterns: Iterable[str]) -> dict[str, str]:
    """Each pattern, and the same with `{uuid}`, `{date}`, `{digits}` or `{hex}` for stars if all its groups fit.

    groups: the result of `patterned`.
    """
    tokens = {pattern: re.findall(r"\\.|\*|[^\\*]+", pattern, re.DOTALL) for pattern in patterns}
    tokens = {pattern: parts for pattern, parts in tokens.items() if 1 <= parts.count("*") <= _STARS}
    wanted = []
    for pattern, parts in tokens.items():
        literals = ("(.*)" if part == "*" else re.escape(re.sub(r"\\(.)", r"\1", part)) for part in parts)
        expression = rf"(?s)^{''.join(literals)}\z"
        wanted.append({"pattern": pattern, "stars": parts.count("*"), "expression": expression})
    schema = pa.schema({"pattern": pa.string(), "stars": pa.int32(), "expression": pa.string()})
    frame = groups.sparkSession.createDataFrame(pa.Table.from_pylist(wanted, schema))
    fits = (
        F.bool_and(
            F.rlike(
                F.expr(f"if(stars < {n}, null, regexp_extract(`group`, expression, {n}))"),
                F.lit(rf"^(?:{PLACEHOLDERS[name]})\z"),
            )
        ).alias(f"{name}{n}")
        for name in _PLACEHOLDERS
        for n in range(1, _STARS + 1)
    )
    found = groups.join(F.broadcast(frame), "pattern").groupBy("pattern").agg(*fits).toArrow().to_pylist()
    return {row["pattern"]: _replaced(row["pattern"], tokens[row["pattern"]], row) for row in found}


def _replaced(pattern: str, tokens: Iterable[str], fits: Mapping[str, Any]) -> str:
    """The pattern with placeholders; itself if a spec would refuse that."""
    count, parts = 0, []
    for token in tokens:
        count += token == "*"
        fitting = (f"{{{name}}}" for name in _PLACEHOLDERS if token == "*" and fits[f"{name}{count}"])
        parts.append(next(fitting, token))
    try:
        check_pattern("".join(parts))
    except SpecError:
        return pattern
    return "".join(parts)


def too_general(pattern: str) -> bool:
    """Whether it has fewer than 3 characters beside stars and placeholders, so that it may match unrelated groups."""
    return len(re.sub(r"\\(.)|\*|\{[a-z]+\}", r"\1", pattern, flags=re.DOTALL)) < _LITERALS


def _masked(name: Column) -> Column:
    """The escaped name, with a star for each part that looks generated."""
    tokens = F.regexp_extract_all(F.regexp_replace(_escaped(name), _GENERATED, "*"), F.lit(_TOKEN), F.lit(0))
    words = F.array_join(F.transform(tokens, lambda it: F.when(_random(it), "*").otherwise(it)), "")
    return F.when(F.length(name) > _LENGTH, _escaped(name)).otherwise(_merged(F.regexp_replace(words, _NUMBER, "*")))


def _escaped(name: Column) -> Column:
    return F.regexp_replace(name, r"[\\*]", r"\\$0")


def _random(word: Column) -> Column:
    """Whether letters, digits and cases alternate more often than in words that people write."""
    chunks = F.regexp_count(word, F.lit(_CHUNK))
    return (F.length(word) >= 8) & F.rlike(word, F.lit("[0-9]")) & (chunks >= 5) & (chunks * 5 >= F.length(word) * 2)


def _merged(pattern: Column) -> Column:
    """Replace stars that follow each other directly, or after one separator, by one star."""
    return F.regexp_replace(pattern, _MERGED, "$1$2")


def _varying(alike: DataFrame) -> DataFrame:
    """`_masked`, and the `positions` of its tokens that have very many values in similar names, if there are any."""
    few = F.size(F.filter("tokens", lambda it: F.rlike(it, F.lit(_WORD)))) <= _PARTS
    short = F.when(F.col("groups") > 0, F.length("_masked") <= _LENGTH)
    parts = alike.where(short & few).select("_masked", "groups", "tokens", F.posexplode("tokens").alias("at", "word"))
    parts = parts.where(F.rlike("word", F.lit(_WORD)))
    others = F.transform("tokens", lambda it, at: F.when(at == F.col("at"), "*").otherwise(it))
    parts = parts.select("_masked", "at", "word", "groups", F.array_join(others, "").alias("others"))
    star, digit = F.col("word") == "*", F.rlike("word", F.lit("[*0-9]"))
    # A star counts as one value per group.
    weight = F.when(star, F.col("groups")).otherwise(F.lit(1))
    rare = star | digit | (F.count("*").over(Window.partitionBy("word")) == 1)
    parts = parts.select("_masked", "at", "others", "word", rare.alias("rare"), weight.alias("weight"))
    same = Window.partitionBy("others")
    values, unusual = F.sum("weight").over(same), F.sum(F.when(F.col("rare"), F.col("weight"))).over(same)
    written = F.sum(F.when(star, 0).otherwise(F.col("weight"))).over(same)
    version = F.rlike("word", F.lit(_VERSION)) & (written < _VALUES)
    literals = F.length(F.regexp_replace("others", r"\\(.)|\*", "$1"))
    varies = (values >= _VALUES) & (unusual >= values * _MOST) & F.col("rare") & ~version & (literals >= _LITERALS)
    found = parts.select("_masked", "at", star.alias("star"), varies.alias("varies")).where("varies and not star")
    return found.groupBy("_masked").agg(F.collect_list("at").alias("positions"))
