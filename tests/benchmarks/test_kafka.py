"""The table of Spark's connectors; no broker and no Spark runs."""

from __future__ import annotations

import pytest

from benchmarks.kafka import rows_of
from benchmarks.spark import READ, STREAM, WRITE, Cost

KAFKA = {WRITE: Cost(1000, 2.0, 0.05, 0.0, 0.04), READ: Cost(1000, 1.0, 0.0, 0.0, 0.0), STREAM: Cost(1000, 4, 0, 0, 0)}
OURS = {
    WRITE: Cost(1000, 1.0, 0.01, 0.02, 0.03),
    f"{WRITE}, at least once": Cost(1000, 0.5, 0, 0, 0),
    READ: Cost(1000, 0.25, 0, 0, 0),
    STREAM: Cost(1000, 8.0, 0, 0, 0),
}


def test_a_cost_is_told_by_the_row() -> None:
    cost = OURS[WRITE]
    assert cost.rate == 1000
    assert cost.note == "us CPU a row: JVM 10.0, Python 20.0, broker 30.0"


def test_each_line_of_each_side_has_a_row_with_its_ratio_to_kafkas() -> None:
    found = rows_of({"API limit": {READ: Cost(1000, 0.1, 0, 0, 0)}, "Kafka": KAFKA, "Holdfast": OURS})
    ratios = {(row["what"], row["who"]): row["ratio"] for row in found}
    assert ratios == {
        (WRITE, "Kafka"): 1,
        (WRITE, "Holdfast"): 2,
        (f"{WRITE}, at least once", "Holdfast"): 4,
        (READ, "API limit"): pytest.approx(10),
        (READ, "Kafka"): 1,
        (READ, "Holdfast"): 4,
        (STREAM, "Kafka"): 1,
        (STREAM, "Holdfast"): 0.5,
    }
    (ours,) = [row for row in found if (row["what"], row["who"]) == (WRITE, "Holdfast")]
    assert [ours[name] for name in ("CPU", "JVM", "Python", "broker")] == [
        pytest.approx(each) for each in (60, 10, 20, 30)
    ]
