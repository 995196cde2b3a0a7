"""Faults of the network and of the server, at random."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

from tests.faults.proxy import Cut, Direction, Proxy
from tests.server_process import ServerProcess

#: Of a URL: whoever uses it notices a loss soon, and comes back soon.
OPTIONS = (
    "?reconnect_delay_seconds=0.02&max_reconnect_delay_seconds=0.5&stable_seconds=0.2&idle_timeout_seconds=1"
    "&connect_timeout_seconds=2&poll_timeout_seconds=0.1"
)


class Faults:
    """What goes wrong, at random.

    Args:
        server: may be killed, and be left with connections that are half open, which it finds out by its idle time-out;
            None: it is not ours, and only its connections are cut.
        proxy: in front of it.
        chance: decides.
    """

    def __init__(self, server: ServerProcess | None, proxy: Proxy, chance: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self.found_dead = False  #: whether the server had ended when it was to be killed
        self._server = server
        self._proxy = proxy
        self._chance = chance
        self._kinds: dict[str, tuple[int, Callable[[], None]]] = {
            "cut": (8, self._cut),
            "cut after some bytes": (4, self._cut_after),
            "half open": (4, self._half_open),
            "black hole": (2, self._black_hole),
            "swallowed": (3, self._swallowed),
            "stalled": (5, self._stalled),
            "away for a while": (2, self._away),
            "slow": (1, self._slow),
            "server killed": (2, self._kill),
        }
        if server is None:
            for name in ("half open", "black hole", "swallowed", "stalled", "slow", "server killed"):
                del self._kinds[name]

    def one(self) -> None:
        """Do one of them."""
        names = list(self._kinds)
        (name,) = self._chance.choices(names, [self._kinds[each][0] for each in names])
        self._kinds[name][1]()
        self.counts[name] += 1

    def _cut(self) -> None:
        self._proxy.cut()

    def _cut_after(self) -> None:
        self._proxy.plan(Cut(self._chance.choice(list(Direction)), bytes=0, into_next=self._chance.randrange(100)))

    def _half_open(self) -> None:
        self._proxy.leave_half_open()

    def _black_hole(self) -> None:
        self._proxy.hold(*self._chance.choice([(Direction.TO_SERVER,), (Direction.TO_CLIENT,), tuple(Direction)]))
        time.sleep(1.5)
        self._proxy.hold()

    def _swallowed(self) -> None:
        """What the clients send goes nowhere, while they still receive, and then the connections are cut."""
        self._proxy.hold(Direction.TO_SERVER)
        time.sleep(0.8 * self._chance.random())
        self._proxy.cut()
        self._proxy.hold()

    def _stalled(self) -> None:
        """What the server sends stands still, longer than the clients wait for a drain, and goes on."""
        self._proxy.hold(Direction.TO_CLIENT)
        time.sleep(0.2 + 0.4 * self._chance.random())
        self._proxy.hold()

    def _away(self) -> None:
        self._proxy.refuse()
        self._proxy.cut()
        time.sleep(self._chance.random())
        self._proxy.refuse(False)

    def _slow(self) -> None:
        self._proxy.delay(0.002)
        time.sleep(1)
        self._proxy.delay(0)

    def _kill(self) -> None:
        assert self._server is not None
        self.found_dead = self.found_dead or not self._server.is_running
        self._server.kill()
        self._server.start()
