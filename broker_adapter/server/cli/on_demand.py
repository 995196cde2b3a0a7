"""Commands whose modules are loaded when they run: each loads what it needs, and help and errors load nothing."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module


def command(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    """A function of a command.

    Args:
        module: of this package, in which the function is.
        name: of the function; it gets the arguments, and returns the exit status.
    """

    def run(options: argparse.Namespace) -> int:
        function: Callable[[argparse.Namespace], int] = getattr(import_module(f"{__package__}.{module}"), name)
        return function(options)

    return run
