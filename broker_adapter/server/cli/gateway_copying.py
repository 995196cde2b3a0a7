"""``holdfast gateway copy``: what regions and queues had before a gateway goes to its other site."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable
from typing import Final

from broker_adapter.errors import JMSException
from broker_adapter.server.cli.terminal import printable
from broker_adapter.server.cli.tools import connected, say
from broker_adapter.transport import Transport
from broker_adapter.wording import counted

#: Messages of one request, and how many may wait for the gateway before the next one.
_AT_ONCE: Final = 1000
_MOST_WAITING: Final = 10_000
#: Time between two questions how many wait, in seconds.
_LOOK_SECONDS: Final = 0.2


def copy(options: argparse.Namespace) -> int:
    """Copy what regions and queues of a gateway had before it."""
    if options.max_rate is not None and options.max_rate < 1:
        raise ValueError(f"--max-rate {options.max_rate} is not 1 or more")
    with connected(options) as (transport, _):
        destinations = _chosen(options, transport)
        for each in destinations:
            _Copy(options, transport, each).run()
    return 0


def _chosen(options: argparse.Namespace, transport: Transport) -> list[str]:
    """The destinations that are to be copied."""
    (found,) = transport.request("gateways", {"name": options.name}, None)
    chosen = [f"{kind}:{name}" for kind in ("region", "queue") for name in getattr(options, kind)]
    known = () if options.again else found["copied"]
    chosen = chosen or [
        each
        for each in found["destinations"]
        if each.startswith("region:") or (each.startswith("queue:") and each not in known)
    ]
    if not chosen:
        raise ValueError(
            f"gateway {options.name!r} has no region, and no queue that was not copied; a queue that it moves is copied"
            " with --queue, and one that was copied with --again"
        )
    if options.after is not None and len(chosen) > 1:
        raise ValueError("--after needs one --region or --queue that it is a place of")
    return chosen


class _Copy:
    """A copy of one region or queue."""

    def __init__(self, options: argparse.Namespace, transport: Transport, destination: str) -> None:
        self._options = options
        self._transport = transport
        self._destination = destination
        self._copied = self._left_out = 0
        self._next: str | None = options.after
        self._tell: Callable[[str], None] = told_at_terminal()

    def run(self) -> None:
        """Copy all; where that is interrupted, say how to go on."""
        try:
            self._copy()
        except (KeyboardInterrupt, JMSException) as error:
            if isinstance(error, JMSException) and not self._copied:
                raise  # it would fail again
            kind, _, name = self._destination.partition(":")
            words = ["holdfast", "gateway", "copy", self._options.name, f"--{kind}", name]
            words += ["--after", self._next] if self._next is not None else ["--again"] * self._options.again
            words += [] if self._options.max_rate is None else ["--max-rate", str(self._options.max_rate)]
            self._tell("")
            say(f"copied {counted(self._copied, 'message')} of {self._destination}; go on with:", sys.stderr)
            say(shlex.join(words), sys.stderr)
            raise
        self._tell("")
        answer = {"destination": self._destination, "copied": self._copied, "left_out": self._left_out}
        left_out = f"; {self._left_out} left out: damaged, or a key without a value" if self._left_out else ""
        shown = f"copied {counted(self._copied, 'message')} of {self._destination}{left_out}"
        say(json.dumps(answer) if self._options.json else shown)

    def _copy(self) -> None:
        rate = self._options.max_rate
        limit = _AT_ONCE if rate is None else min(rate, _AT_ONCE)
        kind, _, name = self._destination.partition(":")
        arguments = {"name": self._options.name, kind: name, "limit": limit, "again": self._options.again}
        begun = time.monotonic()
        while True:
            answer = self._transport.request("copy_to_gateway", {**arguments, "after": self._next}, None)
            self._copied += answer["copied"]
            self._left_out += answer["left_out"]
            if answer["next"] is None:
                return
            self._next = answer["next"]
            self._tell(f"{self._destination}: copied {counted(self._copied, 'message')}")
            if rate is not None:
                time.sleep(max(0.0, begun + self._copied / rate - time.monotonic()))
            if answer["waiting"] > _MOST_WAITING:
                self._wait()

    def _wait(self) -> None:
        """Wait until the other site has taken most of what waits."""
        while True:
            (found,) = self._transport.request("gateways", {"name": self._options.name}, None)
            if found["waiting"] <= _MOST_WAITING:
                return
            why = found["trouble"] or ("" if found["state"] == "running" else f"the gateway is {found['state']}")
            waiting = f"{counted(found['waiting'], 'message', ('waits', 'wait'))}{why and ': '}{why}"
            self._tell(f"{self._destination}: copied {counted(self._copied, 'message')}; {waiting}")
            time.sleep(_LOOK_SECONDS)


def told_at_terminal() -> Callable[[str], None]:
    """Return what shows one line on the standard error in place of the last one; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        return lambda _text: None

    def tell(text: str) -> None:
        print(f"\r\x1b[K{printable(text)}", end="", file=sys.stderr, flush=True)

    return tell
