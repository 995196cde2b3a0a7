"""What Spark is told about the format ``jms``; no Spark runs."""

from __future__ import annotations

import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from sdk import InvalidDestinationException, InvalidSelectorException
from spark_connector.batch_reader import JmsBatchReader
from spark_connector.data_source import JmsDataSource
from spark_connector.queues_stream import JmsQueuesStreamReader
from spark_connector.regions.reader import JmsRegionReader
from spark_connector.regions.rows import REGION_SCHEMA
from spark_connector.regions.stream import JmsRegionStreamReader
from spark_connector.regions.writer import JmsRegionStreamWriter, JmsRegionWriter
from spark_connector.rows import SCHEMA
from spark_connector.spool.reader import JmsSpoolReader, Reach
from spark_connector.stream_reader import JmsStreamReader
from spark_connector.writer import JmsBatchWriter, JmsStreamWriter
from tests.spark_connector.schemas import schema

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


def test_options_that_name_nothing_to_read_are_refused_before_anything_is_done() -> None:
    for asked in (source().schema, lambda: source().reader(SCHEMA), source().streamReader(SCHEMA).initialOffset):
        with pytest.raises(ValueError, match="queue"):
            asked()


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


def test_a_region_has_columns_readers_and_writers_of_its_own() -> None:
    quotes = source(region="quotes", subscription="s")
    assert quotes.schema() == REGION_SCHEMA
    fields = schema("key string, bid double")
    assert isinstance(quotes.reader(fields), JmsRegionReader)
    assert isinstance(quotes.streamReader(fields), JmsRegionStreamReader)
    assert isinstance(source(region="quotes").writer(fields, False), JmsRegionWriter)
    assert isinstance(source(region="quotes", producerId="p").streamWriter(fields, False), JmsRegionStreamWriter)
    with pytest.raises(ValueError, match="no column 'key'"):
        source(region="quotes").writer(VALUE, False)
    with pytest.raises(ValueError, match="a region cannot be overwritten"):
        source(region="quotes").writer(fields, True)


def test_the_stream_of_a_region_needs_a_subscription_and_has_no_filters() -> None:
    with pytest.raises(ValueError, match="needs the option 'subscription'"):
        source(region="quotes").streamReader(REGION_SCHEMA).initialOffset()
    with pytest.raises(ValueError, match="keyPattern and selector are for batches"):
        source(region="quotes", subscription="s", keyPattern="a.*").streamReader(REGION_SCHEMA).initialOffset()


def test_a_pattern_that_is_none_is_told_of_before_any_task_runs() -> None:
    with pytest.raises(InvalidDestinationException, match="expression"):
        source(region="quotes", keyPattern="(").reader(REGION_SCHEMA).partitions()
    with pytest.raises(InvalidSelectorException):
        source(region="quotes", selector="bid >").reader(REGION_SCHEMA).partitions()


def test_a_stream_of_several_queues_has_a_reader_of_its_own() -> None:
    for options in ({"queues": "a,b"}, {"queuePattern": "a.*"}):
        assert isinstance(source(**options).streamReader(SCHEMA), JmsQueuesStreamReader)
        assert isinstance(source(**options).reader(SCHEMA), JmsBatchReader)


def test_a_stream_with_a_spool_has_a_reader_that_knows_how_executors_reach_it() -> None:
    found = source(queue="q", spool="/s").streamReader(SCHEMA)
    assert isinstance(found, JmsSpoolReader)
    assert found._reach == Reach()
    found = source(queue="q", spool="/s", spoolHost="driver").streamReader(SCHEMA)
    assert isinstance(found, JmsSpoolReader)
    assert found._reach == Reach("driver")


def test_what_is_for_batches_and_what_is_for_streams_is_told() -> None:
    with pytest.raises(ValueError, match="a spool is for streams"):
        source(queue="q", spool="/s").reader(SCHEMA)
    with pytest.raises(ValueError, match="endingPosition is for batches"):
        source(queue="q", endingPosition="5").streamReader(SCHEMA).initialOffset()


def test_properties_may_be_left_out() -> None:
    without = source(queue="q", includeProperties="false")
    assert [name for name in SCHEMA.names if name not in without.schema().names] == ["properties"]
    assert isinstance(without.reader(without.schema()), JmsBatchReader)
    with pytest.raises(ValueError, match="leave out one of both"):
        without.reader(SCHEMA)


def test_properties_of_a_region_may_be_left_out() -> None:
    without = source(region="quotes", subscription="s", includeProperties="false")
    assert [name for name in REGION_SCHEMA.names if name not in without.schema().names] == ["properties"]
    assert isinstance(without.reader(without.schema()), JmsRegionReader)
    with pytest.raises(ValueError, match="leave out one of both"):
        without.reader(REGION_SCHEMA)
    with pytest.raises(ValueError, match="leave out one of both"):
        without.streamReader(REGION_SCHEMA).initialOffset()


def test_a_batch_of_a_region_begins_nowhere_but_with_all_its_keys() -> None:
    assert isinstance(source(region="quotes", startingPosition="snapshot").reader(REGION_SCHEMA), JmsRegionReader)
    with pytest.raises(ValueError, match="startingPosition is for streams of a region"):
        source(region="quotes", startingPosition="latest").reader(REGION_SCHEMA)
