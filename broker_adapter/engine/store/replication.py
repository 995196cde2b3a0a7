"""The port to the copies of a store: which commits all of them have that count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Replication(Protocol):
    """What the engine has to know of the copies of its store.

    The commits of the store are numbered.  What depends on one of them leaves the engine once its number is released.
    """

    @property
    def lsn(self) -> int:
        """The number of the last commit of the store."""

    @property
    def released(self) -> int:
        """The number up to which the copies have all commits; it only grows."""

    @property
    def serves(self) -> bool:
        """Whether commands are taken; where they are again, ``Broker.go_on`` is called."""

    def on_release(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` each time ``released`` has grown, in any thread; several may do so at once.

        Effects leave in that thread: no lock may be held meanwhile that a commit, or another release, would need.

        Returns:
            What takes the listener away; legal twice.
        """
