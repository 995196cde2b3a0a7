"""The standard streams: untrusted text without the characters that a terminal would obey, and streams that fail."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


class _Dropping(io.FileIO):
    """A file that drops what cannot be written to it."""

    def write(self, data: Any, /) -> int:
        """See :class:`io.RawIOBase`."""
        try:
            written = super().write(data)
        except OSError:
            written = None
        # None: it would have to wait.
        return memoryview(data).nbytes if written is None else written


def ready_streams() -> bool:
    """Make the standard streams fit for printing and reading.

    A character that the encoding of a stream does not have is printed with an escape.  A stream that is closed is
    replaced by one that fails (the standard error: by one that drops what it gets), so that neither ``None`` nor the
    number of the stream, which the next file or connection would have, is left in its place.  The standard error drops
    what cannot be written: whether notes are read says nothing about the work.

    Returns:
        Whether the standard output is open.
    """
    is_open = sys.stdout is not None
    # The mode of each descriptor is the wrong one, so that reading and writing fail as with a closed one.
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_WRONLY), closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", closefd=False)
    elif (own := sys.__stderr__) is sys.stderr and own is not None:
        raw = _Dropping(own.fileno(), "w", closefd=False)
        sys.stderr = io.TextIOWrapper(io.BufferedWriter(raw), own.encoding, line_buffering=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return is_open


@contextmanager
def output_errors() -> Iterator[None]:
    """Say of an error that it is the standard output which cannot be written.

    Raises:
        OSError: with that text; BrokenPipeError as it is.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, f"the output cannot be written: {error.strerror}") from error


def drop_output() -> None:
    """What was not written is not tried again as the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
