"""Names under which what a query writes is staged and published.  Pure.

Theory of operation
    The broker publishes each number of a *group* once.  The numbers are those of Spark's batches, which count up as
    long as a query keeps its checkpoint.  A checkpoint that is copied or put back counts from where it was, under the
    same query id.  So a group is a query *and* the queue that it writes to: batches for another queue are other
    batches, and on another broker nothing is known of them anyway.  Where a query is to write once more what it wrote
    before, on purpose, the user gives it another ``producerId``.

    Each attempt of a task stages a transaction of its own, named ``GROUP/BATCH/RUN.PARTITION.ATTEMPT.WORD``: so the
    broker knows which transactions belong together.  A query that is started again runs its last batch again, in a new
    run; what an earlier one has staged for it does not count any more.  The word is new each time, since Spark counts
    attempts from zero again when it runs a stage again.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import NamedTuple


class Attempt(NamedTuple):
    """An attempt of a task.

    Attributes:
        run: of the query, a new word each time it is started; no dot is in it.
        partition: of the task.
        number: from 0 on.
        word: that no other attempt has.
    """

    run: str
    partition: int
    number: int
    word: str


def group_of(writer: str, queue: str, producer_id: str | None) -> str:
    """The group whose numbers are published once each.

    Args:
        writer: id of the query, or of the job.
        queue: where it writes to.
        producer_id: the option of that name.
    """
    # A digest, because names of queues may be as long as names of transactions, and have slashes in them.
    target = blake2b(json.dumps([queue, producer_id]).encode(), digest_size=12).hexdigest()
    return f"spark/{writer}/{target}"


def transaction_of(group: str, batch: int, attempt: Attempt) -> str:
    """The staged transaction of an attempt."""
    return f"{all_of_run(group, batch, attempt.run)}{attempt.partition}.{attempt.number}.{attempt.word}"


def earlier_attempts(group: str, batch: int, attempt: Attempt) -> list[str]:
    """Return what the names of the transactions begin with that earlier attempts of the same task staged."""
    run = all_of_run(group, batch, attempt.run)
    return [f"{run}{attempt.partition}.{number}." for number in range(attempt.number)]


def all_of_batch(group: str, batch: int) -> str:
    """Return what the names of the transactions of a batch begin with."""
    return f"{group}/{batch}/"


def all_of_run(group: str, batch: int, run: str) -> str:
    """Return what the names of the transactions of a batch begin with that one run of the query stages."""
    return f"{group}/{batch}/{run}."
