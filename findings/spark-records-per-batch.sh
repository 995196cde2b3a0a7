#!/bin/sh
# PySpark 4.3.0 reads no data source in Python where spark.sql.execution.arrow.maxRecordsPerBatch is 0 or less.
#
# Guess, written before the run: by Spark's own description 0 and -1 mean "no limit", but a correct source cannot be read
# with them, neither as a batch nor as a stream; to write to one, and an Arrow UDF, work.
#
# plan_data_source_read.py and python_streaming_source_runner.py assert that the number is above 0 before they ask the
# source anything.  SPARK-47068 mended the same for createDataFrame and toPandas.
. "$(dirname "$0")/common.sh"
cat >three.py <<'EOF'
from pyspark.sql.datasource import (
    DataSource, DataSourceReader, DataSourceStreamReader, DataSourceWriter, InputPartition, WriterCommitMessage
)


class Reader(DataSourceReader):
    def read(self, partition):
        yield from ((1,), (2,), (3,))


class StreamReader(DataSourceStreamReader):
    def initialOffset(self):
        return {"end": 0}

    def latestOffset(self, start, limit):
        return {"end": 1}

    def partitions(self, start, end):
        return [InputPartition(0)]

    def read(self, partition):
        yield from ((1,), (2,), (3,))


class Writer(DataSourceWriter):
    def write(self, rows):
        for _ in rows:
            pass
        return WriterCommitMessage()


class Three(DataSource):
    @classmethod
    def name(cls):
        return "three"

    def schema(self):
        return "n int"

    def reader(self, schema):
        return Reader()

    def streamReader(self, schema):
        return StreamReader()

    def writer(self, schema, overwrite):
        return Writer()
EOF
cat >run.py <<'EOF'
import re

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.functions import pandas_udf

from three import Three

NAME = "spark.sql.execution.arrow.maxRecordsPerBatch"
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(Three)
described = spark.sql("SET -v").where(f"key = '{NAME}'").first().meaning
print("Spark says: ...", next(each for each in described.split(". ") if "no limit" in each), flush=True)


def outcome(act):
    try:
        return act()
    except Exception as error:
        return (re.findall(r"\w+Error: The maximum arrow batch size[^\n]*", str(error)) or [str(error)[:200]])[0].strip()


@pandas_udf("long")
def same(n: pd.Series) -> pd.Series:
    return n


def stream():
    counts = []
    query = spark.readStream.format("three").load().writeStream.trigger(once=True)
    query.foreachBatch(lambda rows, _: counts.append(rows.count())).start().awaitTermination()
    return f"{sum(counts)} rows"


def write():
    spark.range(3).selectExpr("cast(id as int) n").write.format("three").mode("append").save()
    return "done"


found = {}
for records in ("10000", "0", "-1"):
    spark.conf.set(NAME, records)
    found[records] = (
        outcome(lambda: f"{spark.read.format('three').load().count()} rows"),
        outcome(stream),
        outcome(write),
        outcome(lambda: f"{spark.range(3).select(same('id')).count()} rows"),
    )
    print(f"{records}:", "; ".join(map(" ".join, zip(("read", "stream", "write", "UDF"), found[records]))), flush=True)
spark.stop()
EOF
pyspark
expect output <<'EOF'
Spark says: ... If set to zero or negative there is no limit
10000: read 3 rows; stream 3 rows; write done; UDF 3 rows
0: read AssertionError: The maximum arrow batch size should be greater than 0, but got '0'; stream AssertionError: The maximum arrow batch size should be greater than 0, but got '0'; write done; UDF 3 rows
-1: read AssertionError: The maximum arrow batch size should be greater than 0, but got '-1'; stream AssertionError: The maximum arrow batch size should be greater than 0, but got '-1'; write done; UDF 3 rows
EOF
