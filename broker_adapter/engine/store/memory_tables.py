"""Tables in memory whose records are in the order of their keys."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping


class MemoryTables:
    """Tables by name; each is made by what is put into it first."""

    def __init__(self) -> None:
        self._values: dict[str, dict[bytes, bytes]] = {}
        self._keys: dict[str, list[bytes]] = {}

    def apply(self, table: str, changes: Mapping[bytes, bytes | None]) -> int:
        """Put records, or delete them (None); returns by how many bytes the table has grown."""
        values = self._values.setdefault(table, {})
        keys = self._keys.setdefault(table, [])
        grown = 0
        for key, value in changes.items():
            before = values.get(key)
            if before is not None:
                grown -= len(key) + len(before)
            if value is not None:
                grown += len(key) + len(value)
                values[key] = value
                if before is None:
                    insort(keys, key)
            elif before is not None:
                del values[key]
                del keys[bisect_left(keys, key)]
        return grown

    def get(self, table: str, key: bytes) -> bytes | None:
        """One record."""
        return self._values.get(table, {}).get(key)

    def items_from(self, table: str, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The records of a table from a key on, in the order of their keys; the table must not be changed meanwhile."""
        keys = self._keys.get(table, [])
        values = self._values.get(table, {})
        for index in range(bisect_left(keys, first), len(keys)):
            yield keys[index], values[keys[index]]

    def item_before(self, table: str, key: bytes) -> tuple[bytes, bytes] | None:
        """The last record of a table whose key is lower than this one."""
        keys = self._keys.get(table, [])
        index = bisect_left(keys, key)
        return (keys[index - 1], self._values[table][keys[index - 1]]) if index else None

    def copy_of(self, table: str) -> MemoryTables:
        """One of the tables as it is now; the records themselves are shared."""
        copied = MemoryTables()
        copied._values[table] = dict(self._values.get(table, {}))
        copied._keys[table] = list(self._keys.get(table, ()))
        return copied

    def as_mappings(self) -> dict[str, dict[bytes, bytes]]:
        """All records, by table."""
        return {table: dict(values) for table, values in self._values.items()}
