"""The Arrow schemas of the tables' rows, for the driver and Spark's workers. Imports only pyarrow."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

# Columns with nearly unique values: a Parquet dictionary for them would be built and discarded.
NEARLY_UNIQUE = ("log_offset", "committed_offset", "offsets.list.element.offset")


class Shape(NamedTuple):
    """The rows of a table. mark: the decoded column that is null in rows of other tables; if it is a struct, its fields
    are columns, too. indexed: number of first columns with minima and maxima in Delta's log.
    """

    schema: pa.Schema
    mark: str
    indexed: int
