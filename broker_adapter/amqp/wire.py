"""The words that both ends of a connection of ours use: names, codes and capabilities.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from broker_adapter.amqp.messages.values import Symbol
from broker_adapter.destination import DestinationKind
from broker_adapter.envelope import ENVELOPE_VERSION

#: Properties of ``open``: which connection this one takes the place of; the store of the engine behind our server, and
#: its run; where else a broker can be reached; how many further nodes of its group have what our server confirms.
CONNECTION_TOKEN: Final = "holdfast-connection"
STORE: Final = "holdfast-store"
RUN: Final = "holdfast-run"
SERVER_LIST: Final = "failover-server-list"
REDUNDANCY: Final = "holdfast-redundancy"
#: Most servers that are taken from what a broker announces.
MAX_SERVERS: Final = 100

#: Capabilities of a source or target that say what kind of destination its address names.
DESTINATION_CAPABILITIES: Final = {
    DestinationKind.QUEUE: "queue",
    DestinationKind.TOPIC: "topic",
    DestinationKind.TEMPORARY_QUEUE: "temporary-queue",
    DestinationKind.TEMPORARY_TOPIC: "temporary-topic",
}
#: Capability of a source by which our own client asks our own server for an exclusive consumer.
EXCLUSIVE_CAPABILITY: Final = "HOLDFAST-EXCLUSIVE"
#: The same for a consumer that nothing is to pass that it has failed on.
KEEP_ORDER_CAPABILITY: Final = "HOLDFAST-KEEP-ORDER"
#: Property of a dynamic node: the name that a temporary destination had before the connection was lost.
FORMER_NAME: Final = "holdfast-name"
#: The outcomes that a source has.
OUTCOMES: Final = ("amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list")

#: Codes of described values: the filters of the JMS mapping, the lifetime of a dynamic node, and what is said to a
#: transaction coordinator (AMQP 1.0 sections 3.5.9 and 4.5).
NO_LOCAL_CODE: Final = 0x0000_468C_0000_0003
SELECTOR_CODE: Final = 0x0000_468C_0000_0004
DELETE_ON_CLOSE_CODE: Final = 0x2B
DECLARE_CODE: Final = 0x31
DISCHARGE_CODE: Final = 0x32

#: Message annotation of a discharge that names the commit for our own server: [session, number].
COMMIT_ID: Final = Symbol("x-opt-holdfast-commit-id")
#: Message annotation of a discharge: how many messages, acknowledgements and changes of keys belong to the transaction.
COMMIT_SIZE: Final = Symbol("x-opt-holdfast-commit-size")
#: Message annotation of a discharge: records (:mod:`broker_adapter.amqp.messages.consumer_records`) of what is settled
#: with it.
COMMIT_SETTLED: Final = Symbol("x-opt-holdfast-commit-settled")
#: What is said to our own server's coordinator ahead of a discharge, to add to the transaction: records, with the same
#: annotation, where they are many; changes of a region, with the next one.
ADD_DESCRIPTOR: Final = Symbol("holdfast:add:list")
#: Message annotation of that: changes of a region (:mod:`broker_adapter.amqp.messages.region_changes`).
COMMIT_CHANGES: Final = Symbol("x-opt-holdfast-commit-changes")
#: Message annotation of a ``modified`` that tells our own server who waits if the message fails again: the message
#: alone (True), as if there were no annotation, or its consumer (False), since a transaction or session was undone.
BACK_OFF: Final = Symbol("x-opt-holdfast-back-off")
#: Message annotation of a ``modified``: milliseconds before which our own server does not redeliver the message.
RETRY_DELAY: Final = Symbol("x-opt-holdfast-retry-delay")
#: Condition of a ``rejected`` whose description is why the application has rejected a message.
REJECTED_CONDITION: Final = "holdfast:rejected"
#: Message annotation of a ``modified``: what a listener has raised.
EXCEPTION: Final = Symbol("x-opt-holdfast-exception")

#: Address of our server's request and answer nodes.
MANAGEMENT_ADDRESS: Final = "$holdfast"
#: Number of an unsolicited answer: what the server announces, its list of servers or its redundancy, has changed.
ANNOUNCED: Final = 0
#: Operation by which our own client asks to be told of such changes; answered with what is announced now.
WATCH: Final = "watch"

#: Connection capability of our own ends: several messages may go as one transfer, in the highest version of packed
#: envelopes that both speak.
BATCHES_CAPABILITY: Final = "HOLDFAST-BATCHES"

#: Connection capability by which our own ends recognise each other.  By itself it names version 1 of packed envelopes,
#: and followed by a hyphen and a number version 2 and higher ones.
ENVELOPE_CAPABILITY: Final = "HOLDFAST-ENVELOPE"
_ENVELOPE_CAPABILITY: Final = re.compile(ENVELOPE_CAPABILITY + "(?:-([1-9][0-9]{0,3}))?")


def envelope_capabilities(version: int) -> list[str]:
    """The connection capabilities of an end that speaks this version of packed envelopes, and all before it."""
    if version == 0:
        return []
    return [ENVELOPE_CAPABILITY, *([f"{ENVELOPE_CAPABILITY}-{version}"] if version > 1 else ())]


def envelope_version(capabilities: Iterable[str]) -> int:
    """The version of packed envelopes that both speak, from the capabilities of the other end; 0: it speaks none."""
    named = [found for each in capabilities if (found := _ENVELOPE_CAPABILITY.fullmatch(each))]
    return min(max((int(found[1] or 1) for found in named), default=0), ENVELOPE_VERSION)
