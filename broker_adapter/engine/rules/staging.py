"""Which staged transactions belong together, and when they are dropped.  No I/O, clock, thread or lock.

Theory of operation
    The name of a staged transaction may be a path, ``GROUP/NUMBER/TASK``: the group and the number under which it is
    going to be published, and what tells it from the other transactions of that number.  Transactions with the same
    group and number are one *batch*.  Any other name is a batch by itself.

    A batch is in use as long as messages are added to any of its transactions, or a client says that it is still at
    work on it (*renews* it): in a job of many tasks the first ones are finished long before the last one, and wait for
    it, and that one may compute for long before it adds anything.  A batch that was not used for the time-out is
    dropped.

    The numbers of a group count up.  So a batch is superseded when a transaction of a later number begins, and
    everything up to a number is superseded when that number is published.  Nothing is staged for it afterwards: it
    would be of an attempt that does not know yet that it does not count.

    The last use is kept in memory.  The catalog record of a transaction has it as well, and is written again when the
    noted time is older than a tenth of the time-out.
"""

from __future__ import annotations

from typing import NamedTuple

#: The catalog is told of a use when what it has is older than the time-out divided by this.
_NOTES = 10
#: Longest number in a name, in digits: what fits into 63 bits.
_MOST_DIGITS = 18


class BatchName(NamedTuple):
    """What a transaction belongs to; ``number`` is None where its name is not a path."""

    group: str
    number: int | None


def batch_of(transaction: str) -> BatchName:
    """The batch of a transaction, by its name."""
    parts = transaction.rsplit("/", 2)
    if len(parts) == 3 and parts[0] and parts[1].isascii() and parts[1].isdecimal() and len(parts[1]) <= _MOST_DIGITS:
        return BatchName(parts[0], int(parts[1]))
    return BatchName(transaction, None)


class _Batch:
    """Transactions that are kept together."""

    __slots__ = ("noted_ms", "transactions", "used_ms")

    def __init__(self, age_ms: int) -> None:
        self.transactions: dict[str, None] = {}
        self.used_ms = age_ms
        self.noted_ms = age_ms


class Staging:
    """The staged transactions that are not published, by group and number.

    Args:
        timeout_ms: how long a batch is kept after its last use.
    """

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._groups: dict[str, dict[int | None, _Batch]] = {}

    def __len__(self) -> int:
        return sum(len(batch.transactions) for batches in self._groups.values() for batch in batches.values())

    def begin(self, transaction: str, age_ms: int) -> list[str]:
        """A new transaction, or one that a restart has found.

        Args:
            transaction: its name.
            age_ms: when it was used, by the age of the store; so is every other time here.

        Returns:
            The transactions that it supersedes: those of lower numbers of its group.
        """
        group, number = batch_of(transaction)
        batches = self._groups.setdefault(group, {})
        batch = batches.get(number)
        if batch is None:
            batch = batches[number] = _Batch(age_ms)
        batch.transactions[transaction] = None
        batch.used_ms = max(batch.used_ms, age_ms)
        batch.noted_ms = max(batch.noted_ms, age_ms)
        return [] if number is None else self.through(group, number - 1)

    def used(self, transaction: str, age_ms: int) -> bool:
        """A transaction was used; returns whether its catalog record is to be written again."""
        group, number = batch_of(transaction)
        return self._is_to_be_noted(self._groups[group][number], age_ms)

    def renew(self, group: str, number: int, age_ms: int) -> str | None:
        """A batch, which may have no transaction yet, is still in use.

        Returns:
            One of its transactions whose catalog record is to be written again; None where none is.
        """
        batch = self._groups.get(group, {}).get(number)
        if batch is None or not self._is_to_be_noted(batch, age_ms):
            return None
        return next(iter(batch.transactions))

    def _is_to_be_noted(self, batch: _Batch, age_ms: int) -> bool:
        batch.used_ms = max(batch.used_ms, age_ms)
        if age_ms - batch.noted_ms < max(1, self._timeout_ms // _NOTES):
            return False
        batch.noted_ms = age_ms
        return True

    def end(self, transaction: str) -> tuple[str, int] | None:
        """A transaction was dropped or published; legal twice.

        Returns:
            Another one of its batch, whose catalog record is to be written again with this time of use: it may have
            been noted with the one that has ended.  None: there is none.
        """
        group, number = batch_of(transaction)
        batches = self._groups.get(group, {})
        batch = batches.get(number)
        if batch is None or transaction not in batch.transactions:
            return None
        del batch.transactions[transaction]
        if batch.transactions:
            return next(iter(batch.transactions)), batch.used_ms
        del batches[number]
        if not batches:
            del self._groups[group]
        return None

    def through(self, group: str, number: int) -> list[str]:
        """The transactions of a group whose number is at most this one."""
        return [
            transaction
            for each, batch in self._groups.get(group, {}).items()
            if each is not None and each <= number
            for transaction in batch.transactions
        ]

    def overdue(self, age_ms: int) -> list[str]:
        """The transactions of batches that were not used for the time-out."""
        return [
            transaction
            for batches in self._groups.values()
            for batch in batches.values()
            if batch.used_ms + self._timeout_ms <= age_ms
            for transaction in batch.transactions
        ]
