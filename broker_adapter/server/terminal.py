"""Escapes the characters of untrusted text that a terminal would obey."""

from __future__ import annotations

import logging
from typing import Any, Final

#: Controls of ASCII and Latin-1 (C0, DEL, C1); separators of lines and paragraphs; what changes the direction of
#: writing; halves of surrogate pairs, which no terminal can be sent.
_ESCAPED: Final = (
    *range(0x20),
    *range(0x7F, 0xA0),
    0x061C,
    0x200E,
    0x200F,
    0x2028,
    0x2029,
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),
)
_TABLE: Final = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _ESCAPED}
_TABLE_OF_LINES: Final = {code: text for code, text in _TABLE.items() if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """The text with all control characters escaped, on one line."""
    return text.translate(_TABLE)


def printable_lines(text: str) -> str:
    """The same, except that line feeds and tabs stay as they are."""
    return text.translate(_TABLE_OF_LINES)


class PrintableFormatter(logging.Formatter):
    """A formatter for log records that may hold untrusted text."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """See :class:`logging.Formatter`."""
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        """See :class:`logging.Formatter`."""
        return printable_lines(super().formatException(ei))
