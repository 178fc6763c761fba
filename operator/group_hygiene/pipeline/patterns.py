r"""Finds the patterns that group names are made by, as `match.groups` takes them. Reads and writes no table.

Two things make a part of a name a star: it looks like nothing that a person writes (a UUID, a date, a random token), or
names that are alike in all else have very many values there. Spark SQL functions only: no name ever meets Python, and
none is compared with another: names meet in hashes.

Names are escaped first (`\` as `\\`, `*` as `\*`): a star that is not escaped is one that was put there.
"""

from __future__ import annotations

import re

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

# A position has that many values at least, most of them (a share) of this kind: seen nowhere else, or with a digit.
_VALUES = 20
_MOST = 0.8
# What is longer, or of more parts, is its own pattern, or that which its looks alone give.
_LENGTH = 500
_PARTS = 12
_LITERALS = 3

# What is in the names of Kubernetes' pods: no vowels, and no digits that look like one (rand.SafeEncodeString).
_SAFE = "[bcdfghjklmnpqrstvwxz2456789]"
_HEX = "[0-9a-fA-F]"
_LOOKS = "|".join(
    [
        rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
        # Dates, with times or without.
        r"(?<![0-9])(?:19|20)[0-9]{2}([-_./]?)(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12][0-9]|3[01])"
        r"(?:[T_ -]?[0-2][0-9][-:_]?[0-5][0-9](?:[-:_]?[0-5][0-9])?(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?"
        r"(?![0-9])",
        # Spring Cloud Stream: a UUID in base 64, which may hold what otherwise stands between parts.
        r"(?<=anonymous\.)[0-9A-Za-z_-]{22}\z",
        # Pods of a Deployment; and of a Job or a DaemonSet, where nobody would write it.
        rf"(?<=-){_SAFE}{{7,10}}-{_SAFE}{{5}}(?![0-9A-Za-z])",
        rf"(?<=-)(?=[a-z0-9]*[0-9][a-z]){_SAFE}{{5}}\z",
        # Runs of hexadecimal digits, each in one case.
        r"(?<![0-9A-Za-z])(?:0x)?(?:"
        r"(?=[0-9]*+[a-f])(?=[a-f]*+[0-9])[0-9a-f]{8,}+|(?=[0-9]*+[A-F])(?=[A-F]*+[0-9])[0-9A-F]{8,}+"
        r"|[a-f]{16,}+|[A-F]{16,}+)(?![0-9A-Za-z])",
    ]
)
_NUMBER = "[0-9]{5,}+"
# An escaped character; a word, which may hold stars; what stands between words.
_TOKEN = r"\\[\\*]|[*\p{L}\p{N}]++|[^*\p{L}\p{N}\\]++"
_WORD = r"^[*\p{L}\p{N}]"
# Within a word, what a person would write together: `OrdersV2` has three of these, and so has `a7b`.
_CHUNK = "[A-Z]?[a-z]+|[A-Z]+|[0-9]+"
_VERSION = "^[vV]?[0-9]{1,3}$"
_MERGED = r"(\\[\\*])|(\*)(?:[-_.:/@#]?+\*)++"


def patterned(groups: DataFrame) -> DataFrame:
    """These rows, with the `pattern` of each one's `group`: it matches that name, and those of the same maker.

    A name without others of its kind is its own pattern. The empty name has `*`, as there is no empty pattern.
    """
    rows = groups.withColumn("_looks", _looks(F.col("group")))
    alike = rows.groupBy("_looks").agg(F.count("*").alias("groups"))
    tokens = F.regexp_extract_all("_looks", F.lit(_TOKEN), F.lit(0))
    kinds = alike.join(_varying(alike.withColumn("tokens", tokens)), "_looks", "left")
    starred = F.transform(tokens, lambda it, at: F.when(F.array_contains("positions", at), "*").otherwise(it))
    pattern = F.when(F.col("positions").isNull(), F.col("_looks")).otherwise(_merged(F.array_join(starred, "")))
    kinds = kinds.select("_looks", pattern.alias("_pattern"), "groups")
    several = F.sum("groups").over(Window.partitionBy("_pattern")) > 1
    kinds = kinds.select("_looks", F.when(several, F.col("_pattern")).alias("_pattern"))
    own = _escaped(F.col("group"))
    named = F.when(F.col("group") == "", "*").otherwise(F.coalesce("_pattern", own))
    return rows.join(kinds, "_looks", "left").withColumn("pattern", named).drop("_looks", "_pattern")


def too_general(pattern: str) -> bool:
    """Fewer than 3 characters of it are no star: it may match anything, and says nothing of who made those groups."""
    return len(re.sub(r"\\(.)|\*", r"\1", pattern, flags=re.DOTALL)) < _LITERALS


def _looks(name: Column) -> Column:
    """The escaped name, with a star for each part that looks as nobody writes it."""
    tokens = F.regexp_extract_all(F.regexp_replace(_escaped(name), _LOOKS, "*"), F.lit(_TOKEN), F.lit(0))
    words = F.array_join(F.transform(tokens, lambda it: F.when(_random(it), "*").otherwise(it)), "")
    return F.when(F.length(name) > _LENGTH, _escaped(name)).otherwise(_merged(F.regexp_replace(words, _NUMBER, "*")))


def _escaped(name: Column) -> Column:
    once = F.replace(name, F.lit("\\"), F.lit("\\\\"))
    return F.replace(once, F.lit("*"), F.lit("\\*"))


def _random(word: Column) -> Column:
    """Letters and digits, and letters in both cases, take turns more often than in what a person writes."""
    chunks = F.regexp_count(word, F.lit(_CHUNK))
    return (F.length(word) >= 8) & F.rlike(word, F.lit("[0-9]")) & (chunks >= 5) & (chunks * 5 >= F.length(word) * 2)


def _merged(pattern: Column) -> Column:
    """One star for several with nothing, or one separator, between them."""
    return F.regexp_replace(pattern, _MERGED, "$1$2")


def _varying(alike: DataFrame) -> DataFrame:
    """`_looks` and, where there are any, the `positions` of its tokens that have very many values in names like it."""
    few = F.size(F.filter("tokens", lambda it: F.rlike(it, F.lit(_WORD)))) <= _PARTS
    parts = alike.where((F.length("_looks") <= _LENGTH) & few).select(
        "_looks", "groups", "tokens", F.posexplode("tokens").alias("at", "word")
    )
    parts = parts.where(F.rlike("word", F.lit(_WORD)))
    others = F.transform("tokens", lambda it, at: F.when(at == F.col("at"), "*").otherwise(it))
    parts = parts.select("_looks", "at", "word", "groups", F.array_join(others, "").alias("others"))
    star, digit = F.col("word") == "*", F.rlike("word", F.lit("[*0-9]"))
    # A star stands for as many values as there are groups.
    weight = F.when(star, F.col("groups")).otherwise(F.lit(1))
    rare = star | digit | (F.count("*").over(Window.partitionBy("word")) == 1)
    parts = parts.select("_looks", "at", "others", "word", rare.alias("rare"), weight.alias("weight"))
    same = Window.partitionBy("others")
    values, litter = F.sum("weight").over(same), F.sum(F.when(F.col("rare"), F.col("weight"))).over(same)
    written = F.sum(F.when(star, 0).otherwise(F.col("weight"))).over(same)
    version = F.rlike("word", F.lit(_VERSION)) & (written < _VALUES)
    literals = F.length(F.regexp_replace("others", r"\\(.)|\*", "$1"))
    varies = (values >= _VALUES) & (litter >= values * _MOST) & F.col("rare") & ~version & (literals >= _LITERALS)
    found = parts.select("_looks", "at", star.alias("star"), varies.alias("varies")).where("varies and not star")
    return found.groupBy("_looks").agg(F.collect_list("at").alias("positions"))
