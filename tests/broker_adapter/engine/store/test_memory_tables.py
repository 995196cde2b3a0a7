"""Tables in memory, against a table of LMDB's behaviour written as a dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.engine.store.memory_tables import MemoryTables

KEYS = st.binary(min_size=1, max_size=2)


@given(st.lists(st.dictionaries(KEYS, st.one_of(st.none(), st.binary(max_size=4))), max_size=10), KEYS)
def test_records_are_in_the_order_of_their_keys(batches: list[dict[bytes, bytes | None]], key: bytes) -> None:
    tables, model = MemoryTables(), dict[bytes, bytes]()
    size = 0
    for batch in batches:
        size += tables.apply("events", batch)
        for each, value in batch.items():
            model.pop(each, None)
            if value is not None:
                model[each] = value
    assert size == sum(len(each) + len(value) for each, value in model.items())
    assert tables.get("events", key) == model.get(key)
    assert list(tables.items_from("events", key)) == sorted(item for item in model.items() if item[0] >= key)
    below = [item for item in model.items() if item[0] < key]
    assert tables.item_before("events", key) == max(below, default=None)
    assert tables.as_mappings() == ({"events": model} if batches else {})


def test_a_table_that_nothing_was_put_into_is_empty() -> None:
    tables = MemoryTables()
    assert tables.get("events", b"a") is None
    assert list(tables.items_from("events", b"")) == []
    assert tables.item_before("events", b"a") is None
