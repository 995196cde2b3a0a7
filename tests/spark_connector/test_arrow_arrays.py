"""Arrays that are made from buffers are those that pyarrow makes of the same values; and pandas is not loaded."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_connector import arrow_arrays
from spark_connector.arrow_arrays import of_flags, of_numbers, of_one_text, of_texts

TEXTS = st.lists(st.none() | st.text(st.characters(exclude_categories=("Cs",)), max_size=9), max_size=20)


@given(st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.booleans()), max_size=40))
def test_numbers_are_those_that_pyarrow_makes(cells: list[tuple[int, bool]]) -> None:
    numbers = np.array([number for number, _ in cells], np.int64)
    is_null = np.array([hidden for _, hidden in cells], np.bool_)
    for kind in (pa.int64(), pa.int32()):
        found = of_numbers(numbers, kind, is_null)
        found.validate(full=True)
        assert found.equals(pa.array([None if hidden else number for number, hidden in cells], kind))
        assert of_numbers(numbers, kind).equals(pa.array([number for number, _ in cells], kind))


@given(st.lists(st.booleans(), max_size=40))
def test_flags_are_those_that_pyarrow_makes(flags: list[bool]) -> None:
    assert of_flags(np.array(flags, np.bool_)).equals(pa.array(flags, pa.bool_()))


@given(TEXTS)
def test_texts_are_those_that_pyarrow_makes(texts: list[str | None]) -> None:
    found = of_texts(texts)
    found.validate(full=True)
    assert found.equals(pa.array(texts, pa.string()))


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=9), st.integers(0, 9))
def test_one_text_is_there_as_often_as_it_is_wanted(text: str, count: int) -> None:
    assert of_one_text(text, count).equals(pa.array([text] * count, pa.string()))


def test_a_text_that_has_no_form_in_utf_8_is_an_error() -> None:
    with pytest.raises(ValueError, match="surrogates not allowed"):
        of_texts(["fine", "\ud800"])


def test_texts_of_more_than_an_array_can_have_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_arrays, "MOST_BYTES", 5)
    assert of_texts(["12", "345"]).to_pylist() == ["12", "345"]
    with pytest.raises(ValueError, match="more than 2 GiB"):
        of_texts(["123", "456"])


#: Loads what Spark's processes load of the connector, and reads and writes rows.
_PROGRAM = """
import sys
import pyarrow as pa
import spark_connector, broker_adapter.failover.transport, broker_adapter.amqp.client.transport
from broker_adapter import Destination, Envelope, BodyKind, block_of, pack
from spark_connector.block_rows import batch_of_block
from spark_connector.rows import SCHEMA, envelopes_of
sent = Envelope(Destination("q"), BodyKind.TEXT, "text", {"a": "b"}, "ID:1", "cid", sent_at_ms=1, type="t")
block = block_of([1, 2], [0, 0], [pack(sent), pack(sent._replace(body=None, properties=None))], {})
batch = batch_of_block(block, "q", SCHEMA.fieldNames())
assert [each.body for each in envelopes_of(batch, Destination("q"), 4, None)] == ["text", None]
print("pandas" in sys.modules)
"""


def test_no_process_of_spark_loads_pandas_for_the_connector() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["False"]
