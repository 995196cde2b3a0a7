"""Untrusted text on a terminal."""

from __future__ import annotations

import io
import logging
import sys
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.server.cli.terminal import PrintableFormatter, printable, printable_lines


def test_controls_of_the_terminal_and_of_the_direction_of_writing_are_escaped() -> None:
    assert printable("a\x1b[2J\r\n\t\x00\x7f\x9b") == "a\\x1b[2J\\x0d\\x0a\\x09\\x00\\x7f\\x9b"
    assert printable("\u202ex\u2066\u200f\u061c\u2028") == "\\u202ex\\u2066\\u200f\\u061c\\u2028"
    assert printable("grün, 日本, \\n, 😀") == "grün, 日本, \\n, 😀"


def test_lines_and_tabs_of_a_text_stay() -> None:
    assert printable_lines("a\tb\nc\r\x1b") == "a\tb\nc\\x0d\\x1b"


@given(st.text(st.characters()))
def test_nothing_is_left_that_a_terminal_would_obey(text: str) -> None:
    for shown in (printable(text), printable_lines(text)):
        shown.encode()  # no half of a surrogate pair
        for character in shown.replace("\n", "").replace("\t", ""):
            assert unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")
            assert unicodedata.bidirectional(character) not in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "PDI")
    assert "\n" not in printable(text)


def test_log_records_are_escaped_and_their_tracebacks_keep_their_lines() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PrintableFormatter("%(levelname)s %(message)s"))
    try:
        raise ValueError("bad\x1b[31m")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "from %s", ("\x1b[2J\nERROR forged",), sys.exc_info())
    handler.emit(record)
    first, *others = stream.getvalue().splitlines()
    assert first == "ERROR from \\x1b[2J\\x0aERROR forged"
    assert others[-1] == "ValueError: bad\\x1b[31m"
