"""The command ``holdfast``: what it runs, and what becomes of its errors.

Exit status: 0 done, 1 it did not work (the error says why, and what to do), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Sequence

from broker_adapter.errors import JMSException
from broker_adapter.server.cli.parser import parse
from broker_adapter.server.cli.terminal import PrintableFormatter, drop_output, output_errors, ready_streams
from broker_adapter.server.cli.tools import warn


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: without the program's name; None: those of the process.

    Returns:
        The exit status.
    """
    is_open = ready_streams()
    try:
        try:
            status = _run(arguments, is_open=is_open)
        except SystemExit:  # of argparse: help, the version, wrong usage
            _flush()
            raise
        _flush()
    except BrokenPipeError:
        drop_output()  # its reader has gone
        return 1
    except (JMSException, ValueError, OSError) as error:
        warn(str(error))
        try:
            sys.stdout.flush()
        except OSError:
            drop_output()
        return 1
    except KeyboardInterrupt:
        drop_output()  # its reader may be slow
        return 130
    return status


def _run(arguments: Sequence[str] | None, *, is_open: bool) -> int:
    options = parse(arguments)
    if not is_open and options.needs_output:
        raise ValueError("the standard output is closed, so nothing was done; open it (>/dev/null discards the output)")
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        status: int = options.run(options)
    except JMSException as error:
        raise ValueError(in_options(str(error), options.parser)) from error
    return status


def in_options(text: str, parser: argparse.ArgumentParser) -> str:
    """An error of a server with the options of the command in place of the arguments of the request.

    Args:
        text: the error; what is in quotes is of the user, but for the name of an argument.
        parser: of the command.
    """
    names: dict[str, str] = {}
    for action in parser._actions:
        option = next(
            (each for each in action.option_strings if each.startswith("--")), str(action.metavar or action.dest)
        )
        names[action.dest] = option
        if action.dest.endswith("_seconds"):
            names[f"{action.dest.removesuffix('_seconds')}_ms"] = f"{option} (in milliseconds)"

    def replaced(found: re.Match[str]) -> str:
        name = found["argument"] or found["bare"]
        return names.get(name, found[0])

    bare = "|".join(name for name in names if "_" in name) or "(?!)"
    return re.sub(
        rf"the argument '(?P<argument>\w+)'(?: of operation '\w+')?|\b(?P<bare>{bare})\b|(?<!\w)(?:'[^']*'|\"[^\"]*\")",
        replaced,
        text,
    )


def _flush() -> None:
    """Write what waits in the buffer of the standard output now, where an error can still be told."""
    with output_errors():
        sys.stdout.flush()
