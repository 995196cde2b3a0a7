"""The file of an engine's configuration, ``holdfast.toml``: today the settings of single queues.

::

    [[policy]]
    match = "orders.>"
    max_deliveries = 3
    dead_letter_queue = "orders.dead"

What a policy is: :mod:`broker_adapter.engine.queues.policies`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from broker_adapter.engine.queues.policies import MAX_POLICIES, Policy, PolicyError, contradictions, policy
from broker_adapter.settings import PolicySettings, options_of

#: Largest file.
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
_TABLE: Final = re.compile(r"\s*\[")
_POLICY: Final = re.compile(r"""\s*\[\[\s*["']?policy["']?\s*\]\]""")
#: Where a parser says that it stopped.
_AT_LINE: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


def read_policies(path: str | os.PathLike[str]) -> list[Policy]:
    """Read the policies of a file.

    Args:
        path: the file.

    Returns:
        The policies, in their order.

    Raises:
        ValueError: it cannot be read or understood, or its policies contradict each other: ``FILE:LINE: reason``.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{os.fspath(path)}: the configuration cannot be read: {error.strerror}") from error
    try:
        return _policies(data)
    except _WrongError as error:
        raise ValueError(f"{os.fspath(path)}:{error.line}: {error.reason}") from error.__cause__


class _WrongError(Exception):
    """What is wrong, and in which line."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason, line)
        self.reason = reason
        self.line = line


def _policies(data: bytes) -> list[Policy]:
    if len(data) > MAX_FILE_BYTES:
        raise _WrongError(f"the file is larger than {MAX_FILE_BYTES} bytes, the limit", 1)
    try:
        text = data.decode()
        tables = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise _WrongError("this is not UTF-8", data.count(b"\n", 0, error.start) + 1) from error
    except tomllib.TOMLDecodeError as error:
        found = _AT_LINE.search(str(error))
        line = int(found[1]) if found and found[1] else text.count("\n") + 1
        raise _WrongError(_AT_LINE.sub("", str(error)), line) from error
    except RecursionError:
        raise _WrongError("values are nested too deeply", 1) from None
    lines = text.splitlines()
    for name in tables:
        if name != "policy":
            line = _line_of(lines, range(len(lines)), rf"\[*\s*{re.escape(name)}\b")
            raise _WrongError(f"unknown table {name!r:.100}; there is [[policy]]", line)
    given = tables.get("policy", [])
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise _WrongError(
            "policies are written as [[policy]] tables", _line_of(lines, range(len(lines)), "policy|.policy")
        )
    if len(given) > MAX_POLICIES:
        raise _WrongError(f"there are {len(given)} policies; {MAX_POLICIES} is the limit", 1)
    places = list(_places(lines))
    found_policies = []
    for number, fields in enumerate(given):
        place = places[number] if number < len(places) else range(len(lines))
        try:
            found_policies.append(policy(fields.pop("match", None), fields))
        except PolicyError as error:
            line = _line_of(lines, place, rf"""["']?{re.escape(error.setting)}["']?\s*=""")
            raise _WrongError(str(error), line) from error
    for later, earlier, setting in contradictions(found_policies):
        place = places[number] if (number := found_policies.index(later)) < len(places) else range(len(lines))
        raise _WrongError(
            f"{setting} of policy {later.match!r} contradicts that of {earlier.match!r}: patterns of one length may"
            " match the same name; give it in one of them, or make one pattern longer",
            _line_of(lines, place, rf"{setting}\s*="),
        )
    return found_policies


def _places(lines: Sequence[str]) -> Iterator[range]:
    """Yield the lines of each ``[[policy]]``."""
    heads = [number for number, line in enumerate(lines) if _TABLE.match(line)] + [len(lines)]
    for head, end in pairwise(heads):
        if _POLICY.match(lines[head]):
            yield range(head, end)


def _line_of(lines: Sequence[str], place: range, pattern: str) -> int:
    """The number of the first line of a place that begins so; else that of its first one."""
    begins = re.compile(rf"\s*(?:{pattern})")
    return next((number + 1 for number in place if begins.match(lines[number])), place.start + 1)


def example() -> str:
    """Return a file with every setting as a comment: its default, what it is, and its limits."""
    lines = [
        "# The settings of single queues: holdfast serve --config FILE.  What is not given is as the options say.",
        "# Where several patterns match, the longest one that gives a setting wins.",
        "",
        "#[[policy]]",
        '#match = "orders.>"  # words divided by dots: * is any text without a dot, > at the end the rest',
    ]
    for info in options_of(PolicySettings):
        shown = shown_value(info.default)
        if info.default is None or isinstance(info.default, str):
            shown = f'"{shown}"'
        limits = f"; from {info.least:g}" if info.least is not None else ""
        lines += [f"#{info.name} = {shown}  # {info.text}{limits}"]
    return "\n".join(lines) + "\n"


def shown_value(value: Any) -> str:
    """A setting as the file has it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)
