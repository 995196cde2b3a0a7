"""The record of a group: what is written is read, and what is no record is refused with the reason."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from broker_adapter.engine.records.layout import STORE_VERSION
from broker_adapter.errors import StoreException, StoreVersionException
from broker_adapter.group.record import (
    COPY,
    MAX_BYTES,
    MEMBER,
    GroupRecord,
    NodeRecord,
    check_name,
    decoded,
    encoded,
)

NODES = {
    "n1": NodeRecord("host1:5672", 10),
    "n2": NodeRecord("[::1]:5672", 11),
    "dr": NodeRecord("far.example:5672", 10, COPY),
}
RECORD = GroupRecord("store", 7, "n1", frozenset({"n1", "n2"}), NODES, 40817, "word", 10, 2)


def changed(**fields: Any) -> bytes:
    """The bytes of a record with other fields; of one that is None, without it."""
    found = {**json.loads(encoded(RECORD)), **fields}
    return json.dumps({name: value for name, value in found.items() if value is not None}).encode()


def test_what_is_written_is_read() -> None:
    assert decoded(encoded(RECORD)) == RECORD
    other = attrs.evolve(RECORD, leaves=True, in_sync=frozenset())
    assert decoded(encoded(other)) == other
    assert {each.role for each in decoded(encoded(RECORD)).nodes.values()} == {MEMBER, COPY}


def test_the_same_record_has_the_same_bytes() -> None:
    again = attrs.evolve(RECORD, in_sync=frozenset(["n2", "n1"]))
    assert encoded(again) == encoded(RECORD)


def test_a_record_over_its_size_is_neither_written_nor_read() -> None:
    many = {f"n{place}": NodeRecord("x" * 200, 1) for place in range(30)}
    with pytest.raises(StoreException, match=r"would have 7\d+ bytes, more than 4096"):
        encoded(attrs.evolve(RECORD, nodes={**NODES, **many}))
    with pytest.raises(StoreException, match=f"it has {MAX_BYTES + 1} bytes"):
        decoded(encoded(RECORD).ljust(MAX_BYTES + 1))
    assert decoded(encoded(RECORD).ljust(MAX_BYTES)) == RECORD


def test_a_record_of_a_newer_version_is_left_alone() -> None:
    with pytest.raises(StoreVersionException, match="version 2, and this software knows 1: upgrade this node"):
        decoded(changed(version=2, term="of another shape"))


def test_a_node_does_not_join_where_the_stores_are_of_a_newer_version() -> None:
    decoded(changed(store_version=STORE_VERSION))
    newer = STORE_VERSION + 1
    with pytest.raises(
        StoreVersionException, match=f"have version {newer}, and this software knows .*upgrade this node"
    ):
        decoded(changed(store_version=newer))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "there is none"),
        (b"{", "it is no JSON"),
        (b"\xff\xfe", "it is no JSON"),
        (b"[" * 4000, "it is no JSON"),
        (b"[]", "it is no object of JSON"),
        (b"{}", "its version is no number: None"),
        (changed(version=True), "its version is no number: True"),
        (changed(term=None), "it lacks 'term'"),
        (changed(colour="red"), "it has the unknown field 'colour'"),
        (changed(term="7"), "its term is no number: '7'"),
        (changed(term=7.0), "its term is no number: 7.0"),
        (changed(renewed=-1), "its renewed is no number: -1"),
        (changed(renewed=2**63), "its renewed is no number: 9223372036854775808"),
        (changed(min_in_sync=[]), r"its min_in_sync is no number: \[\]"),
        (changed(writer=5), "its writer is no text: 5"),
        (changed(store={}), "its store is no text: {}"),
        (changed(primary=1), "its primary is no text: 1"),
        (changed(primary="n3"), "its primary 'n3' is none of its nodes"),
        (changed(primary=""), "its primary '' is none of its nodes"),
        (changed(leaves=0), "its leaves is neither true nor false: 0"),
        (changed(in_sync="n1"), "its in_sync is no list of its nodes"),
        (changed(in_sync=["n1", "n3"]), "its in_sync is no list of its nodes"),
        (changed(in_sync=[["n1"]]), "its in_sync is no list of its nodes"),
        (changed(nodes=["n1"]), "its nodes are no nodes by name"),
        (changed(nodes={"a b": {}}), "its nodes are no nodes by name"),
        (changed(nodes={"n1": 1, "n2": {}}), "node n1 is no object"),
        (changed(nodes={"n1": {}, "n2": {}}), "node n1 lacks 'address'"),
        (
            changed(nodes={"n1": {"address": "a", "store_version": 1, "role": "king"}, "n2": {}}),
            "node n1 has the unknown role 'king'",
        ),
        (
            changed(nodes={"n1": {"address": 1, "store_version": 1, "role": "copy"}, "n2": {}}),
            "its address is no text: 1",
        ),
    ],
)
def test_what_is_no_record_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(StoreException, match=f"the record of the group cannot be read: {reason}"):
        decoded(data)


@pytest.mark.parametrize("name", ["n1", "A.b_c-9", "x" * 64])
def test_a_name_of_a_node_has_letters_and_digits(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", "a b", "ä", "n1\n", "x" * 65, "a/b"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no name of a node"):
        check_name(name)
