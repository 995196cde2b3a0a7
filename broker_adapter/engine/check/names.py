"""The check of records that belong to no queue: numbers that were done, and those about the store itself.  No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Final

import msgpack

from broker_adapter.engine.check.findings import Finding, Summary, Tables, can_decode, to_quarantine
from broker_adapter.engine.records.layout import (
    AGE,
    COPY_OF,
    META_NAMES,
    NEXT_MESSAGE,
    NEXT_QUEUE,
    NEXT_RUN,
    UNIQUE,
    decode_last,
    decode_meta,
    decode_run,
    decode_sequences,
    decode_stream_key,
    encode_meta,
    is_run_key,
)
from broker_adapter.engine.records.start_numbers import next_run, number_of
from broker_adapter.engine.records.tail import is_sound
from broker_adapter.errors import StoreCorruptException

#: Numbers of queues that are skipped where it is not known which ones were used.
SKIPPED_QUEUES: Final = 1 << 16
#: Numbers of messages that are skipped likewise.
SKIPPED_MESSAGES: Final = 1 << 32


def check_names(tables: Tables, summary: Summary) -> Iterator[Finding]:
    """Check the last numbers of producers, commits and publications; ``summary`` counts the producers."""
    decoders: Iterable[tuple[str, Callable[[bytes, bytes], object]]] = (
        ("producers", _decode_stream),
        ("commits", decode_last),
        ("published", decode_last),
    )
    for table, decode in decoders:
        for key, value in tables.items(table):
            summary.producers += table == "producers"
            try:
                decode(key, value)
            except (StoreCorruptException, ValueError, TypeError, msgpack.UnpackException):
                yield Finding(
                    "damaged record of numbers done",
                    table,
                    key,
                    f"record {key.hex()} of table {table} cannot be trusted; it goes into quarantine, and what it"
                    " knew of is new",
                    to_quarantine(table, key, value),
                )


def check_tail(tables: Tables) -> Iterator[Finding]:
    """Check the commits that copies can follow."""
    if tables.persistent:
        for key, value in tables.items("tail"):
            if not is_sound(key, value):
                yield Finding(
                    "damaged record of a commit",
                    "tail",
                    key,
                    f"record {key.hex()} of table tail cannot be trusted; it goes into quarantine, and copies that lack"
                    " this commit take an image",
                    to_quarantine("tail", key, value),
                )


def check_meta(tables: Tables, highest_queue: int, highest_message: int) -> Iterator[Finding]:
    """Check what a store knows of itself.

    Args:
        tables: of the store.
        highest_queue: the highest number of a queue that is no staged transaction.
        highest_message: the highest number of a message.
    """
    if not tables.persistent:
        return
    yield from _check_starts(tables)
    for key, value in tables.items("meta"):
        if not is_run_key(key) and key not in META_NAMES:
            yield Finding(
                "unknown record of the store",
                "meta",
                key,
                f"the record {key!r:.60} of the store is unknown; it goes into quarantine",
                to_quarantine("meta", key, value),
            )
    unique = tables.get("meta", UNIQUE)
    if unique is not None and not can_decode(decode_meta, UNIQUE, unique):
        yield Finding(
            "damaged name of the store",
            "meta",
            UNIQUE,
            "the record of what the store is known by cannot be trusted; it gets a new name, so what clients know"
            " of its queues from before counts as another store's",
            (
                *to_quarantine("meta", UNIQUE, unique),
                ("meta", UNIQUE, encode_meta(UNIQUE, blake2b(unique, digest_size=8).hexdigest())),
            ),
        )
    age = tables.get("meta", AGE)
    if age is not None and not can_decode(decode_meta, AGE, age):
        yield Finding(
            "damaged age of the store",
            "meta",
            AGE,
            "the record of how long engines have run on the store cannot be trusted; it goes into quarantine, and is"
            " taken from the names that were used last",
            to_quarantine("meta", AGE, age),
        )
    copy_of = tables.get("meta", COPY_OF)
    if copy_of is not None and not can_decode(decode_meta, COPY_OF, copy_of):
        yield Finding(
            "damaged name of a server",
            "meta",
            COPY_OF,
            "the record of which server the store is a copy of cannot be trusted; it goes into quarantine, and nothing"
            " keeps the store from being served: as long as that server is in use, go on following it",
            to_quarantine("meta", COPY_OF, copy_of),
        )
    noted = _noted(tables, NEXT_QUEUE)
    if noted <= highest_queue:
        yield Finding(
            "wrong number of the next queue",
            "meta",
            NEXT_QUEUE,
            f"the next queue would be number {noted}, and there is a queue {highest_queue}; it is put right, and as"
            " those above may have been used as well, some are skipped",
            (("meta", NEXT_QUEUE, encode_meta(NEXT_QUEUE, highest_queue + 1 + SKIPPED_QUEUES)),),
        )
    noted = _noted(tables, NEXT_MESSAGE)
    if noted <= highest_message and (highest_message or tables.get("meta", NEXT_MESSAGE) is not None):
        yield Finding(
            "wrong number of the next message",
            "meta",
            NEXT_MESSAGE,
            f"the next message would be number {noted}, and there is a message {highest_message}; it is put right,"
            " and as those above may have been used as well, some are skipped",
            (("meta", NEXT_MESSAGE, encode_meta(NEXT_MESSAGE, highest_message + 1 + SKIPPED_MESSAGES)),),
        )


def _check_starts(tables: Tables) -> Iterator[Finding]:
    """Check the records of the starts, and the number of the next one: it is not one that a damaged record has."""
    damaged, last = [], 0
    for key, value in tables.items("meta"):
        if is_run_key(key):
            last = number_of(key)
            if not can_decode(decode_run, key, value):
                damaged.append((key, value))
    noted = tables.get("meta", NEXT_RUN)
    number, is_sure = next_run(last, noted)
    note = ("meta", NEXT_RUN, encode_meta(NEXT_RUN, number))
    for key, value in damaged:
        yield Finding(
            "damaged record of a start",
            "meta",
            key,
            f"the record {key!r} of a start of the engine cannot be trusted; it goes into quarantine",
            (*to_quarantine("meta", key, value), note),
        )
    if noted is not None and not is_sure:
        yield Finding(
            "damaged number of the next start",
            "meta",
            NEXT_RUN,
            f"the number of the next start of the engine cannot be trusted; it goes into quarantine, and as those"
            f" behind {last} may have been used as well, some are skipped",
            (*to_quarantine("meta", NEXT_RUN, noted), note),
        )


def _noted(tables: Tables, key: bytes) -> int:
    """A number of ``meta``; 0 where it cannot be trusted."""
    value = tables.get("meta", key)
    try:
        return int(decode_meta(key, value)) if value is not None else 0
    except (StoreCorruptException, ValueError, TypeError):
        return 0


def _decode_stream(key: bytes, value: bytes) -> None:
    decode_stream_key(key)
    decode_sequences(key, value)
