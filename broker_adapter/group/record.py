"""The record of a group at the coordinator: who is primary, who is in sync.  JSON of at most 4 KiB.  Pure.

::

    {"version": 1, "store": "5f1c...", "term": 7, "primary": "n1", "leaves": false, "in_sync": ["n1", "n2"],
     "renewed": 40817, "writer": "a81b...", "store_version": 10, "min_in_sync": 2,
     "nodes": {"n1": {"address": "host1:5672", "store_version": 10, "role": "member"}, ...}}

A node that reads a record with a higher ``version`` or ``store_version`` than it knows leaves it alone; other fields
than these it does not accept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import attrs

from broker_adapter.engine.records.layout import STORE_VERSION
from broker_adapter.engine.records.tail import NODE_NAME
from broker_adapter.errors import StoreException, StoreVersionException

#: Largest record, in bytes.
MAX_BYTES: Final = 4096
#: Of the fields of a record.
VERSION: Final = 1
#: What a node may be: one that can become primary, or one that follows only.
MEMBER: Final = "member"
COPY: Final = "copy"
_MOST: Final = 2**63


@attrs.frozen
class NodeRecord:
    """A node of the group."""

    address: str  #: for clients and other nodes, HOST:PORT
    store_version: int  #: newest version of stores that it knows
    role: str = MEMBER


@attrs.frozen
class GroupRecord:
    """The record of a group."""

    store: str  #: the name that the stores of all nodes have
    term: int  #: number of the primary's reign
    primary: str  #: a node
    in_sync: frozenset[str]  #: nodes that have all that was released
    nodes: Mapping[str, NodeRecord]  #: by name
    renewed: int  #: number of this record: each swap adds one
    writer: str  #: word of the process that wrote it
    store_version: int  #: of the stores of the group; the primary raises it once every node knows a newer one
    min_in_sync: int  #: nodes that must be in sync for sends
    leaves: bool = False  #: the primary ends: another node that is in sync may stand at once

    def goes_on_without(self, name: str) -> bool:
        """Return whether another node has all that was confirmed, and is primary or may stand at once."""
        return self.primary != name or (self.leaves and len(self.in_sync) > 1)


def encoded(record: GroupRecord) -> bytes:
    """Return the bytes of a record.

    Raises:
        StoreException: they are too many: the group has too many nodes, or their addresses are too long.
    """
    fields = {"version": VERSION, **attrs.asdict(record), "in_sync": sorted(record.in_sync)}
    data = json.dumps(fields, separators=(",", ":")).encode()
    if len(data) > MAX_BYTES:
        raise StoreException(f"the record of the group would have {len(data)} bytes, more than {MAX_BYTES}")
    return data


def decoded(data: bytes) -> GroupRecord:
    """Return the record of these bytes.

    Raises:
        StoreVersionException: a newer version has written it, or the stores of the group.
        StoreException: that is no record of a group; it says why.
    """
    if not data:
        raise _damaged("there is none")
    if len(data) > MAX_BYTES:
        raise _damaged(f"it has {len(data)} bytes, more than {MAX_BYTES}")
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _damaged(f"it is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise _damaged("it is no object of JSON")
    version = _number(fields, "version")
    if version > VERSION:
        raise StoreVersionException(
            f"the record of the group has version {version}, and this software knows {VERSION}: upgrade this node"
        )
    names = [field.name for field in attrs.fields(GroupRecord)]
    _check_names(fields, ["version", *names], "it")
    in_sync, nodes = fields["in_sync"], fields["nodes"]
    if not isinstance(nodes, dict) or not all(NODE_NAME.fullmatch(name) for name in nodes):
        raise _damaged("its nodes are no nodes by name")
    if not isinstance(in_sync, list) or not all(isinstance(each, str) and each in nodes for each in in_sync):
        raise _damaged("its in_sync is no list of its nodes")
    primary, leaves = _text(fields, "primary"), fields["leaves"]
    if primary not in nodes:
        raise _damaged(f"its primary {primary!r:.100} is none of its nodes")
    if not isinstance(leaves, bool):
        raise _damaged(f"its leaves is neither true nor false: {leaves!r:.100}")
    numbers = {each: _number(fields, each) for each in ("term", "renewed", "store_version", "min_in_sync")}
    if numbers["store_version"] > STORE_VERSION:
        raise StoreVersionException(
            f"the stores of the group have version {numbers['store_version']}, and this software knows versions up to"
            f" {STORE_VERSION}: upgrade this node"
        )
    return GroupRecord(
        store=_text(fields, "store"),
        primary=primary,
        leaves=leaves,
        in_sync=frozenset(in_sync),
        nodes={name: _node(name, node) for name, node in nodes.items()},
        writer=_text(fields, "writer"),
        **numbers,
    )


def check_name(name: str) -> None:
    """Check the name of a node.

    Raises:
        ValueError: it is not one.
    """
    if not NODE_NAME.fullmatch(name):
        raise ValueError(f"{name!r:.100} is no name of a node: 1 to 64 letters, digits, dots, dashes and underscores")


def _node(name: str, fields: Any) -> NodeRecord:
    if not isinstance(fields, dict):
        raise _damaged(f"node {name} is no object")
    _check_names(fields, [field.name for field in attrs.fields(NodeRecord)], f"node {name}")
    role = fields["role"]
    if role not in (MEMBER, COPY):
        raise _damaged(f"node {name} has the unknown role {role!r:.100}")
    return NodeRecord(_text(fields, "address"), _number(fields, "store_version"), role)


def _check_names(fields: Mapping[str, Any], expected: list[str], what: str) -> None:
    different = sorted(fields.keys() ^ set(expected))
    if different:
        state = "lacks" if different[0] in expected else "has the unknown field"
        raise _damaged(f"{what} {state} {different[0]!r:.100}")


def _number(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value < _MOST:
        raise _damaged(f"its {name} is no number: {value!r:.100}")
    return value


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise _damaged(f"its {name} is no text: {value!r:.100}")
    return value


def _damaged(reason: str) -> StoreException:
    return StoreException(f"the record of the group cannot be read: {reason}")
