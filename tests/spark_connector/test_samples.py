"""The samples with Spark print what they say: in this process, in the session of the other tests.

That a program with Spark starts by itself is for the demo to show.
"""

from __future__ import annotations

from importlib import import_module

import pytest
from pyspark.sql import SparkSession

EXPECTED = {
    "s07_spark_batch": """\
orders: 100 amount: 50500
large: {"order":96,"amount":960}
large: {"order":97,"amount":970}
large: {"order":98,"amount":980}
large: {"order":99,"amount":990}
large: {"order":100,"amount":1000}
""",
    "s08_spark_streaming": """\
ONCE
UPON
A
TIME
left in sample.words: 0
""",
    "s14_spark_sensors": """\
sent: 5
  12:00 roof 5.0  new
  12:01 yard 9.0  new
  rejected: roof: 5 degrees (not the JSON of a reading)
sent: 4
  12:00 roof 5.0
  12:01 yard 9.0
  12:03 roof 8.0  new
  12:03 yard 8.0  new
  rejected: {"sensor": "yard", "celsius": 5.0} (a field is missing)
each minute once, as sent
""",
}


@pytest.mark.parametrize("sample", sorted(EXPECTED))
def test_a_sample_with_spark_prints_what_it_says(
    sample: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "1"}  # those that a sample needs
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda builder: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda own: None)
    try:
        assert not import_module(f"samples.{sample}").main()
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
        spark.sparkContext.setLogLevel("OFF")
    assert capsys.readouterr().out == EXPECTED[sample]
