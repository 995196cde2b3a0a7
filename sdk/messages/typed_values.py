"""The JMS ways to read and write values by type: by name (properties, map messages), and one after the other (streams).

The Python ways beside them, such as ``message.properties["k"]`` and ``message.body``, give the values as they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from sdk.messages.conversion import Type


class NamedValues(ABC):
    """Values that are read and written by name.

    Each ``get_...`` converts as the table in :mod:`sdk.messages.conversion` says; what is not there is read like None.

    Raises, all of them:
        MessageFormatException: the value cannot be read as that type, or written as it.
        MessageNotWriteableException: written into a message that was received.
    """

    __slots__ = ()

    @abstractmethod
    def _get(self, name: str, wanted: Type) -> Any:
        """The value of a name, converted."""

    @abstractmethod
    def _set(self, name: str, value: Any, written: Type) -> None:
        """Set a name to a value of this type."""

    def get_boolean(self, name: str) -> bool:
        """As a boolean; False where there is none."""
        return self._get(name, Type.BOOLEAN)  # type: ignore[no-any-return]

    def get_byte(self, name: str) -> int:
        """As an integer of 8 bits."""
        return self._get(name, Type.BYTE)  # type: ignore[no-any-return]

    def get_short(self, name: str) -> int:
        """As an integer of 16 bits."""
        return self._get(name, Type.SHORT)  # type: ignore[no-any-return]

    def get_int(self, name: str) -> int:
        """As an integer of 32 bits."""
        return self._get(name, Type.INT)  # type: ignore[no-any-return]

    def get_long(self, name: str) -> int:
        """As an integer of 64 bits."""
        return self._get(name, Type.LONG)  # type: ignore[no-any-return]

    def get_float(self, name: str) -> float:
        """As a floating-point number of 32 bits."""
        return self._get(name, Type.FLOAT)  # type: ignore[no-any-return]

    def get_double(self, name: str) -> float:
        """As a floating-point number of 64 bits."""
        return self._get(name, Type.DOUBLE)  # type: ignore[no-any-return]

    def get_string(self, name: str) -> str | None:
        """As a string; None where there is none."""
        return self._get(name, Type.STRING)  # type: ignore[no-any-return]

    def set_boolean(self, name: str, value: bool) -> None:
        """Set a boolean."""
        self._set(name, value, Type.BOOLEAN)

    def set_byte(self, name: str, value: int) -> None:
        """Set an integer of 8 bits."""
        self._set(name, value, Type.BYTE)

    def set_short(self, name: str, value: int) -> None:
        """Set an integer of 16 bits."""
        self._set(name, value, Type.SHORT)

    def set_int(self, name: str, value: int) -> None:
        """Set an integer of 32 bits."""
        self._set(name, value, Type.INT)

    def set_long(self, name: str, value: int) -> None:
        """Set an integer of 64 bits."""
        self._set(name, value, Type.LONG)

    def set_float(self, name: str, value: float) -> None:
        """Set a floating-point number, rounded to 32 bits."""
        self._set(name, value, Type.FLOAT)

    def set_double(self, name: str, value: float) -> None:
        """Set a floating-point number of 64 bits."""
        self._set(name, value, Type.DOUBLE)

    def set_string(self, name: str, value: str | None) -> None:
        """Set a string."""
        self._set(name, value, Type.STRING)


class SequentialValues(ABC):
    """Values that are written one after the other, and read so after ``reset()`` or when the message was received.

    Raises, all of them:
        MessageFormatException: the value cannot be read as that type, or written as it; a failed read does not move on.
        MessageEOFException: read past the end.
        MessageNotReadableException: read before ``reset()``.
        MessageNotWriteableException: written after ``reset()``, or into a message that was received.
    """

    __slots__ = ()

    @abstractmethod
    def _read(self, wanted: Type) -> Any:
        """The next value, converted."""

    @abstractmethod
    def _write(self, value: Any, written: Type) -> None:
        """Add a value of this type."""

    @abstractmethod
    def reset(self) -> None:
        """Make the body read-only, and read it from its beginning."""

    def read_boolean(self) -> bool:
        """The next value as a boolean."""
        return self._read(Type.BOOLEAN)  # type: ignore[no-any-return]

    def read_byte(self) -> int:
        """The next value as an integer of 8 bits."""
        return self._read(Type.BYTE)  # type: ignore[no-any-return]

    def read_short(self) -> int:
        """The next value as an integer of 16 bits."""
        return self._read(Type.SHORT)  # type: ignore[no-any-return]

    def read_int(self) -> int:
        """The next value as an integer of 32 bits."""
        return self._read(Type.INT)  # type: ignore[no-any-return]

    def read_long(self) -> int:
        """The next value as an integer of 64 bits."""
        return self._read(Type.LONG)  # type: ignore[no-any-return]

    def read_float(self) -> float:
        """The next value as a floating-point number of 32 bits."""
        return self._read(Type.FLOAT)  # type: ignore[no-any-return]

    def read_double(self) -> float:
        """The next value as a floating-point number of 64 bits."""
        return self._read(Type.DOUBLE)  # type: ignore[no-any-return]

    def write_boolean(self, value: bool) -> None:
        """Add a boolean."""
        self._write(value, Type.BOOLEAN)

    def write_byte(self, value: int) -> None:
        """Add an integer of 8 bits."""
        self._write(value, Type.BYTE)

    def write_short(self, value: int) -> None:
        """Add an integer of 16 bits."""
        self._write(value, Type.SHORT)

    def write_int(self, value: int) -> None:
        """Add an integer of 32 bits."""
        self._write(value, Type.INT)

    def write_long(self, value: int) -> None:
        """Add an integer of 64 bits."""
        self._write(value, Type.LONG)

    def write_float(self, value: float) -> None:
        """Add a floating-point number, rounded to 32 bits."""
        self._write(value, Type.FLOAT)

    def write_double(self, value: float) -> None:
        """Add a floating-point number of 64 bits."""
        self._write(value, Type.DOUBLE)
