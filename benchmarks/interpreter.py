"""The Python that a benchmark runs on: the same code takes less CPU on one that was built with optimisations."""

from __future__ import annotations

import platform
import sysconfig
import time
from typing import Final

_LOOPS: Final = 200_000


def description() -> str:
    """Return the version, and whether the build is an optimised one."""
    version = f"{platform.python_implementation()} {platform.python_version()}"
    if "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""):
        return f"{version}, built with --enable-optimizations"
    return (
        f"{version}, built without --enable-optimizations: an optimised build was seen to take 0.83 to 0.89 of the CPU"
    )


def byte_code_ns() -> float:
    """Return the nanoseconds of CPU that one turn of a fixed loop takes, the best of five: a yardstick of this run."""
    return min(_turn_ns() for _ in range(5))


def _turn_ns() -> float:
    table: dict[int, int] = {}
    started = time.process_time_ns()
    for number in range(_LOOPS):
        key = number & 63
        table[key] = table.get(key, 0) + len(str(number))
    return (time.process_time_ns() - started) / _LOOPS
