"""Operations on staged transactions, and their publication."""

from __future__ import annotations

from broker_adapter.destination import Destination
from broker_adapter.engine import commands as c
from broker_adapter.engine.operation_steps import (
    Arguments,
    Steps,
)
from broker_adapter.envelope import read_head
from broker_adapter.errors import (
    MessageFormatException,
)


def stage(arguments: Arguments) -> Steps:
    """Add messages to a staged transaction."""
    messages = []
    for payload in arguments["messages"]:
        message = c.from_head(payload, read_head(payload))
        messages.append(message._replace(persistent=True, identity=None))
    return (
        yield c.Stage(
            arguments["transaction"],
            Destination(arguments["queue"]),
            arguments["first"],
            messages,
        )
    )


def renew(arguments: Arguments) -> Steps:
    """Keep what is staged for longer."""
    return (yield c.Renew(arguments["group"], arguments["number"]))


def publish(arguments: Arguments) -> Steps:
    """Returns when the messages are in their queue."""
    transactions, counts = arguments["transactions"], arguments["counts"]
    if counts is not None and len(counts) != len(transactions):
        raise MessageFormatException("operation 'publish': argument 'counts' is not a number for each transaction")
    published: bool = yield c.Publish(arguments["group"], arguments["number"], transactions, counts)
    # One that was published before may still be under way.  Those behind it are not waited for.
    through, done = yield lambda reader: reader.moves
    while done < through:
        yield c.Due(())  # each cycle of the engine moves some
        _, done = yield lambda reader: reader.moves
    return published


def published(arguments: Arguments) -> Steps:
    """The last number of a group that was published."""
    group = arguments["group"]
    return (yield lambda reader: reader.last_published(group))


def discard(arguments: Arguments) -> Steps:
    """Drop staged transactions."""
    transactions = list(arguments["transactions"])
    prefixes, keep = tuple(arguments["prefixes"]), tuple(arguments["keep"])
    if prefixes:
        found = yield lambda reader: [name for name in reader.state.directory.staged if name.startswith(prefixes)]
        transactions += [name for name in found if not name.startswith(keep)]
    return (yield c.Discard(transactions))
