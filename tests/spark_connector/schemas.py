"""Schemas of Spark from text, without a session."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "bigint": LongType(),
    "int": IntegerType(),
    "byte": ByteType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "array": ArrayType(DoubleType()),
    "map": MapType(StringType(), StringType()),
}


def schema(text: str) -> StructType:
    """The schema of "name type, ..."; a type that is followed by ``!`` may not be null."""
    fields = [each.split() for each in text.split(",")]
    return StructType([StructField(name, _TYPES[kind.rstrip("!")], not kind.endswith("!")) for name, kind in fields])
