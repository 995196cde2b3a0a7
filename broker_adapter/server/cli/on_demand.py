"""Commands whose modules are loaded when they run: each loads what it needs, and help and errors load nothing."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def command(module: str, name: str) -> Callable[..., Any]:
    """A function of a command.

    Args:
        module: of this package, in which the function is.
        name: of the function; it gets the arguments, and returns the exit status.
    """

    def run(*arguments: Any) -> Any:
        return getattr(import_module(f"{__package__}.{module}"), name)(*arguments)

    return run
