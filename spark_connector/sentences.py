"""Errors that Spark shows with their own sentence first, and the trace below it.

Theory of operation
    A worker process tells Spark of an error by a text that its last act formats: a trace, at whose end the sentence is.
    With ``SPARK_HIDE_TRACEBACK`` in the environment of the process at that moment it is the error alone, which includes
    its notes.  So where an error leaves the connector in a worker, the trace becomes a note, and the variable is set:
    nothing is lost, and the process ends anyway.  A Spark that does not know the variable shows what it always has.
"""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

#: Has Spark's workers tell an error without its trace.
HIDE = "SPARK_HIDE_TRACEBACK"
#: By this Spark marks its workers.
_RUNTIME, _WORKER = "SPARK_PYTHON_RUNTIME", "PYTHON_WORKER"
#: What Spark calls, of sources, readers and writers.
_CALLED = frozenset(
    {
        *("schema", "reader", "streamReader", "writer", "streamWriter"),
        *("partitions", "read", "initialOffset", "prepareForTriggerAvailableNow", "latestOffset"),
        *("write", "commit", "abort"),
    }
)


def sentence_first(cls: type[T]) -> type[T]:
    """Have the errors of a class that Spark calls show their own sentence first; changes the class."""
    for name in _CALLED & set(vars(cls)):
        setattr(cls, name, _wrapped(vars(cls)[name]))
    return cls


def _wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(*arguments: Any, **named: Any) -> Any:
        try:
            result = method(*arguments, **named)
        except Exception as error:
            put_first(error)
            raise
        return _watched(result) if isinstance(result, Iterator) else result

    return called


def _watched(rows: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except Exception as error:
        put_first(error)
        raise


def is_worker() -> bool:
    """Return whether this process is a worker of Spark."""
    return os.environ.get(_RUNTIME) == _WORKER


def put_first(error: Exception) -> None:
    """Where this process is a worker of Spark, have it tell this error without a trace, which becomes a note."""
    if not is_worker() or HIDE in os.environ:
        return
    seen = error.__traceback__ and error.__traceback__.tb_next  # without the frame of this file
    error.add_note("".join(["\n", *traceback.format_exception(type(error), error, seen)]).rstrip("\n"))
    os.environ[HIDE] = "1"
