"""What Spark is told about the format ``jms``; no Spark runs."""

from __future__ import annotations

import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from spark_connector.batch_reader import JmsBatchReader
from spark_connector.data_source import JmsDataSource
from spark_connector.rows import SCHEMA
from spark_connector.stream_reader import JmsStreamReader
from spark_connector.writer import JmsBatchWriter, JmsStreamWriter

VALUE = StructType([StructField("value", StringType())])


def source(**options: str) -> JmsDataSource:
    return JmsDataSource({"url": "amqp://127.0.0.1:1", **options})


def test_its_name_is_jms_and_it_has_all_columns() -> None:
    assert JmsDataSource.name() == "jms"
    assert source(queue="q").schema() == SCHEMA


def test_a_schema_of_the_users_names_some_of_the_columns() -> None:
    some = StructType([SCHEMA["position"], SCHEMA["text"]])
    for found in (source(queue="q").reader(some), source(queue="q").streamReader(some)):
        assert isinstance(found, JmsBatchReader | JmsStreamReader)
        assert found._columns == ("position", "text")
    with pytest.raises(ValueError, match="nothing"):
        source(queue="q").reader(StructType([StructField("nothing", StringType())]))


@pytest.mark.parametrize("method", ["schema", "reader", "streamReader"])
def test_options_that_name_nothing_to_read_are_refused_before_anything_is_done(method: str) -> None:
    with pytest.raises(ValueError, match="queue"):
        getattr(source(), method)(*([] if method == "schema" else [SCHEMA]))


def test_a_queue_is_appended_to_and_never_overwritten() -> None:
    assert isinstance(source(queue="q").writer(VALUE, False), JmsBatchWriter)
    assert isinstance(source(queue="q").streamWriter(VALUE, False), JmsStreamWriter)
    for method in (source(queue="q").writer, source(queue="q").streamWriter):
        with pytest.raises(ValueError, match=r"a queue cannot be overwritten: use mode\('append'\)"):
            method(VALUE, True)


def test_rows_that_make_no_messages_are_refused_before_they_are_read() -> None:
    with pytest.raises(ValueError, match="value"):
        source(queue="q").writer(StructType([StructField("other", IntegerType())]), False)


def test_a_batch_job_has_no_producer_id() -> None:
    assert isinstance(source(queue="q", producerId="p").streamWriter(VALUE, False), JmsStreamWriter)
    with pytest.raises(ValueError, match="producerId is for streaming queries"):
        source(queue="q", producerId="p").writer(VALUE, False)
