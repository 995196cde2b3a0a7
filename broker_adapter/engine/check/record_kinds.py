"""Of which table a record is: what is read from pages of a damaged store, without their branches, does not say it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgpack

from broker_adapter.engine.clients.client_records import (
    INTEREST_KEY_BYTES,
    SPAN_KEY_BYTES,
    AudienceRecord,
    decode_audience,
    decode_client,
    decode_cursor,
    decode_interest,
    decode_span,
)
from broker_adapter.engine.records.gateway_records import decode_gateway, decode_progress, is_progress
from broker_adapter.engine.records.layout import (
    ENTRY_KEY_BYTES,
    FIRST_VOLATILE_QUEUE,
    META_NAMES,
    TABLES,
    decode_annotations,
    decode_catalog,
    decode_counters,
    decode_entry,
    decode_last,
    decode_message,
    decode_reference,
    decode_run,
    decode_schedule_line,
    decode_sequences,
    is_run_key,
    newer,
    split_quarantine_key,
    unpack_message_key,
    unpack_queue_key,
)
from broker_adapter.engine.records.tail import decode_commit
from broker_adapter.engine.regions.event_records import (
    decode_event,
    decode_posting,
)
from broker_adapter.engine.regions.event_records import (
    decode_run as decode_run_of_updates,
)
from broker_adapter.engine.regions.key_records import decode_key_record, decode_tombstone
from broker_adapter.engine.regions.region_records import decode_region
from broker_adapter.errors import (
    StoreCorruptException,
    StoreVersionException,
)


def tables_of(key: bytes, value: bytes) -> Sequence[str]:
    """The tables that a record may be of, by its key and checksum; none where it is of no known kind.

    Raises:
        StoreVersionException: newer software has written it.
    """
    is_newer = False
    for tables, is_one in _RECOGNISED:
        try:
            if is_one(key, value):
                return tables
        except (StoreCorruptException, ValueError, TypeError, msgpack.UnpackException):
            continue
        except StoreVersionException:  # unless it is of another table
            is_newer = True
    if is_newer:
        raise newer(f"record {key.hex()} is of a form that this software does not know")
    return ()


def _is_message(key: bytes, value: bytes) -> bool:
    return len(key) == 8 and decode_message(unpack_message_key(key)[0], value) is not None


def _is_queue(key: bytes) -> bool:
    return len(key) == 4 and unpack_queue_key(key)[0] < FIRST_VOLATILE_QUEUE


def _is_audience(record: AudienceRecord) -> bool:
    """Return whether it is one; records of the catalogue and the counters of a queue have other fields there."""
    return isinstance(record.region, int) and isinstance(record.is_own, bool)


_RECOGNISED: Final[tuple[tuple[tuple[str, ...], Callable[[bytes, bytes], object]], ...]] = (
    (("schedule",), lambda key, value: decode_schedule_line(key, value)),
    (("entries",), lambda key, value: decode_entry(key, value)),
    (
        ("annotations",),
        lambda key, value: len(key) == ENTRY_KEY_BYTES and isinstance(decode_annotations(key, value), dict),
    ),
    (("references",), lambda key, value: len(key) == len(value) == 8 and decode_reference(key, value)),
    (("tail",), lambda key, value: decode_commit(key, value)),
    (("messages",), _is_message),
    (("events",), lambda key, value: len(key) == 8 and decode_event(key, value)),
    (("runs",), lambda key, value: decode_run_of_updates(key, value)),
    (("postings",), lambda key, value: decode_posting(key, value)),
    (("keys",), lambda key, value: decode_key_record(key, value)),
    # The value of a short one of these two might be that of a tombstone.
    (("interests",), lambda key, value: len(key) == INTEREST_KEY_BYTES and decode_interest(key, value)),
    (("audiences",), lambda key, value: len(key) == SPAN_KEY_BYTES and decode_span(key, value)),
    (("tombstones",), lambda key, value: decode_tombstone(key, value)),
    (("regions",), lambda key, value: decode_region(key, value)),
    (("gateways",), lambda key, value: decode_progress(key, value) if is_progress(key) else decode_gateway(key, value)),
    (("clients",), lambda key, value: key[:1] in b"=#" and isinstance(decode_client(key, value).client_id, str)),
    (("cursors",), lambda key, value: key[:1] in b"=#" and decode_cursor(key, value)),
    (("audiences",), lambda key, value: len(key) == 4 and _is_audience(decode_audience(key, value))),
    (("catalog",), lambda key, value: _is_queue(key) and decode_catalog(key, value)),
    (("queues",), lambda key, value: _is_queue(key) and decode_counters(key, value)),
    # Nothing tells these two apart; a number too many in one of them is never asked for.
    (("commits", "published"), lambda key, value: decode_last(key, value)),
    (("producers",), lambda key, value: decode_sequences(key, value)),
    (
        ("meta",),
        lambda key, value: key in META_NAMES or (is_run_key(key) and decode_run(key, value)),
    ),
    (("quarantine",), lambda key, value: split_quarantine_key(key)[0] in TABLES and b"\0" in key),
)
