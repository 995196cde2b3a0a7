"""Interrupts what runs in this thread as the handler of a signal does."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType

#: The modules that are interrupted.
_MODULES = ("sdk.", "ack_modes.", "contextlib")


class Interrupt(Exception):
    """What the handler of a signal raises."""


class AtStep:
    """Interrupts where the handler of a signal may run: as a function of the SDK begins, or behind one of C there."""

    def __init__(self, number: int) -> None:
        self.left = number

    def trace(self, frame: FrameType, event: str, _argument: object) -> None:
        if event in ("call", "c_return") and frame.f_globals["__name__"].startswith(_MODULES):
            self.left -= 1
            if not self.left:
                raise Interrupt

    def during(self, call: Callable[[], object]) -> Interrupt | None:
        """What the call was interrupted by; None: it has fewer steps."""
        before = sys.getprofile()
        gc.disable()  # else it may be a finalizer of something else that is interrupted, and not this
        sys.setprofile(self.trace)
        try:
            call()
        except Interrupt as error:
            return error
        finally:
            sys.setprofile(before)
            gc.enable()
        return None
