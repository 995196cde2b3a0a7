"""A stream that cannot be: it tells why at Spark's first question.

Spark 4.3 loses an error that is raised where it asks for the reader of a stream, and shows one of its own.
"""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from spark_connector.sentences import sentence_first


@sentence_first
class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises the same error whatever it is asked."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def prepareForTriggerAvailableNow(self) -> None:
        """Raise it."""
        raise self._error

    def initialOffset(self) -> dict[str, Any]:
        """Raise it."""
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Raise it."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> NoReturn:
        """Raise it: Spark begins with this where it repeats a batch."""
        raise self._error

    def read(self, partition: InputPartition) -> NoReturn:
        """Raise it."""
        raise self._error
