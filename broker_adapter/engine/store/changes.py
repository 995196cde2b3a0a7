"""What a commit changes, as records: what is put and what is deleted, whatever was there before.

A change says nothing of what it changes: no count is raised, nothing is moved.  So changes that are made once more, or
in another store that has the same records, leave the same records there.  What depends on the store (how many entries
refer to a message, which starts of the engine are remembered) is read ahead of the transaction and resolved here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from broker_adapter.engine.check.findings import Change, to_quarantine
from broker_adapter.engine.commands.effects import StoreBatch
from broker_adapter.engine.records.layout import (
    NEXT_RUN,
    RunRecord,
    decode_reference,
    encode_entry,
    encode_message,
    encode_meta,
    encode_reference,
    encode_run,
    message_key,
    run_key,
)
from broker_adapter.engine.records.start_numbers import SKIPPED_RUNS, next_run, number_of, superfluous
from broker_adapter.errors import StoreCorruptException

_log = logging.getLogger(f"holdfast.{__name__}")

#: Records to put, and keys that are deleted then, by table.
Changes = tuple[dict[str, list[tuple[bytes, bytes]]], dict[str, list[bytes]]]


def changes_of(batch: StoreBatch, references: Mapping[bytes, bytes]) -> Changes:
    """Return what a batch changes.

    Args:
        batch: the decisions of a cycle.
        references: the records of this table as they are, of the messages that one queue less holds.
    """
    puts: dict[str, list[tuple[bytes, bytes]]] = {}
    deletes: dict[str, list[bytes]] = {}
    if batch.messages:
        puts["messages"] = [
            (message_key(number), encode_message(number, message.format, message.payload))
            for number, message in batch.messages.items()
        ]
    if batch.entries:
        entries, ended = [], []
        for key, entry in batch.entries.items():
            if entry is None:
                ended.append(key)
            else:
                count, flags, expires_at_ms = entry.delivery_count, entry.flags, entry.expires_at_ms
                value = encode_entry(key, entry.number, count, flags, expires_at_ms, entry.size, entry.group)
                entries.append((key, value))
        puts["entries"], deletes["entries"] = entries, ended
    if batch.gone:
        deletes["messages"] = list(map(message_key, batch.gone))
    for table, records in batch.tables.items():
        for key, record in records.items():
            if record is None:
                deletes.setdefault(table, []).append(key)
            else:
                puts.setdefault(table, []).append((key, record))
    if batch.references or batch.unreferenced:
        for key, count in _counts(batch, references).items():
            if count > 0:
                puts.setdefault("references", []).append((key, encode_reference(key, count)))
            else:
                deletes.setdefault("references", []).append(key)
                deletes.setdefault("messages", []).append(key)
    return puts, deletes


def _counts(batch: StoreBatch, references: Mapping[bytes, bytes]) -> dict[bytes, int]:
    """Return how many entries refer to messages then, by the keys of these."""
    left = {message_key(number): count for number, count in batch.references}
    for key in map(message_key, batch.unreferenced):
        try:
            if key in left:
                left[key] -= 1
            elif key in references:
                left[key] = decode_reference(key, references[key]) - 1
            else:
                left[key] = 0
        except StoreCorruptException:
            # It is not known how many entries are left: the message stays, and a check counts them.
            number = int.from_bytes(key)
            _log.error("! the count of references to message %d cannot be trusted; the message is kept", number)
    return left


def start_noted(record: RunRecord, known: Mapping[bytes, int], noted: bytes | None) -> Changes:
    """Return what notes a start of the engine, with the number of the next one, and forgets the oldest ones.

    Args:
        record: of the start.
        known: the keys of those that are remembered, in order, with the bytes of their records.
        noted: the record of the number of the next start, as it is; None: there is none.
    """
    starts = list(known)
    number, is_sure = next_run(number_of(starts[-1]) if starts else 0, noted)
    changes: list[Change] = [("meta", key, None) for key in starts[: superfluous(list(known.values()))]]
    if noted is not None and not is_sure:
        _log.error("! the number of the next start of an engine is damaged: %d are skipped", SKIPPED_RUNS)
        changes += to_quarantine("meta", NEXT_RUN, noted)
    key = run_key(number)
    changes += [("meta", key, encode_run(key, record)), ("meta", NEXT_RUN, encode_meta(NEXT_RUN, number + 1))]
    return by_table(changes)


def by_table(changes: Iterable[Change]) -> Changes:
    """Return changes by table; of two of the same record, the later one counts."""
    puts: dict[str, list[tuple[bytes, bytes]]] = {}
    deletes: dict[str, list[bytes]] = {}
    for (table, key), value in {(table, key): value for table, key, value in changes}.items():
        if value is None:
            deletes.setdefault(table, []).append(key)
        else:
            puts.setdefault(table, []).append((key, value))
    return puts, deletes


def joined(changes: Changes, others: Changes) -> Changes:
    """Return changes of different records as one."""
    (puts, deletes), (other_puts, other_deletes) = changes, others
    return (
        {table: [*puts.get(table, ()), *other_puts.get(table, ())] for table in {**puts, **other_puts}},
        {table: [*deletes.get(table, ()), *other_deletes.get(table, ())] for table in {**deletes, **other_deletes}},
    )
