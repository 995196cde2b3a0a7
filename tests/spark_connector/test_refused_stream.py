"""A stream that cannot be tells why at whatever Spark asks first."""

from __future__ import annotations

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType

from spark_connector.data_source import JmsDataSource
from spark_connector.refused_stream import RefusedStream


@pytest.mark.parametrize(
    ("asked", "arguments"),
    [
        ("prepareForTriggerAvailableNow", ()),
        ("initialOffset", ()),
        ("latestOffset", ({}, ReadAllAvailable())),
        ("partitions", ({}, {})),
        ("read", (None,)),
    ],
)
def test_it_raises_the_error_whatever_it_is_asked(asked: str, arguments: tuple[object, ...]) -> None:
    error = ValueError("endingPosition is for batches")
    with pytest.raises(ValueError, match="endingPosition") as told:
        getattr(RefusedStream(error), asked)(*arguments)
    assert told.value is error


def test_options_and_columns_that_cannot_be_refuse_a_stream() -> None:
    unknown = StructType([StructField("txt", StringType())])
    found = JmsDataSource({"queue": "q", "url": "embedded:"}).streamReader(unknown)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown column 'txt'"):
        found.initialOffset()
    found = JmsDataSource({"colour": "red"}).streamReader(unknown)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown option 'colour'"):
        found.initialOffset()
