"""In which partition of `__consumer_offsets` a group's records are. Pure, imported by Spark's workers."""

from __future__ import annotations


def partition_of(group: str, partitions: int) -> int:
    """A group's partition of `__consumer_offsets` (GroupCoordinatorService.partitionFor, String.hashCode)."""
    return partition_of_hash(hash_of(group), partitions)


def hash_of(text: str) -> int:
    """String.hashCode, as an unsigned number."""
    code = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code


def partition_of_hash(code: int, partitions: int) -> int:
    """The partition of a group whose id has this hash. By numpy's arrays of int64, of many."""
    # As Utils.abs: the smallest number, which has no positive counterpart, becomes 0.
    return abs(code - (code >> 31 << 32)) % (1 << 31) % partitions
