"""``holdfast gateway verify``: whether regions are the same at both sites of a gateway.

Theory of operation
    Both sites are asked for the digests of the same ranges of keys, and for the keys of a range only where these
    differ.  What differs is looked at a second time, when the gateway has sent what waited: a key that has another
    stamp by then, or is equal, was under way.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from broker_adapter.connect import transport_for
from broker_adapter.engine.regions.stamps import Stamp, milliseconds_of
from broker_adapter.errors import InvalidDestinationException
from broker_adapter.server.cli.gateway_copying import told_at_terminal
from broker_adapter.server.cli.tools import connected, say
from broker_adapter.transport import Credentials, Transport
from broker_adapter.wording import counted

#: Keys of one range, and keys that differ before no further range is looked at; and those that are listed as text.
_RANGE_KEYS: Final = 1000
_MOST_KEYS: Final = 10_000
_MOST_SHOWN: Final = 20
#: Shortest time between the first look and the second one, and time between two questions how many messages wait.
_PAUSE_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.2


def verify(options: argparse.Namespace) -> int:
    """Compare regions of a gateway with those of the other site; the status is 1 where a key differs."""
    with connected(options) as (here, _):
        (found,) = here.request("gateways", {"name": options.name}, None)
        regions = options.region or [
            each.partition(":")[2] for each in found["destinations"] if each.startswith("region:")
        ]
        if not regions:
            raise ValueError(f"gateway {options.name!r} has no region that could be compared")
        url = options.to or found["url"]
        if "***" in url:
            raise ValueError(f"the URL {url} has a user: give it with --to, or better in $HOLDFAST_GATEWAY_URL")
        there, settings = transport_for(url, restores=False)
        try:
            there.open(Credentials(), lambda _event: None, None)
            results = [_Comparison(options, here, there, each).run() for each in regions]
        finally:
            there.close(settings.close_timeout_seconds)
    return int(any(results))


class _Side(NamedTuple):
    """What one site knows of a key."""

    stamp: Stamp
    digest: bytes


#: What both sites know of a key; None: nothing, or that it was destroyed.
_Sides = tuple[_Side | None, _Side | None]
#: The keys behind the first one, up to the second one; None: from the first on, to the last one.
_Range = tuple[str | None, str | None]


class _Comparison:
    """The comparison of one region."""

    def __init__(self, options: argparse.Namespace, here: Transport, there: Transport, region: str) -> None:
        self._options = options
        self._here = here
        self._there = there
        self._region = region
        self._tell: Callable[[str], None] = told_at_terminal()

    def run(self) -> bool:
        """Compare the region, and say what differs; return whether a key does."""
        keys, ranges = self._ranges()
        first = self._differing(ranges)
        waiting = self._wait() if first else 0
        second = self._differing(ranges) if first else {}
        differing = {key: sides for key, sides in second.items() if first.get(key) == sides}
        self._tell("")
        under_way = len(first.keys() | second.keys()) - len(differing)
        if self._options.json:
            listed = {key: [_as_plain(side) for side in sides] for key, sides in differing.items()}
            found = {"region": self._region, "keys": keys, "differing": listed, "under_way": under_way}
            say(json.dumps({**found, "waiting": waiting}))
        else:
            self._show(keys, differing, under_way, waiting)
        return bool(differing)

    def _show(self, keys: int, differing: dict[str, _Sides], under_way: int, waiting: int) -> None:
        what = f"{counted(len(differing), 'key', ('differs', 'differ'))}" if differing else "equal"
        if len(differing) >= _MOST_KEYS:
            what += " at least"
        more = f"; {under_way} under way, {waiting} wait for the gateway" if under_way or waiting else ""
        say(f"region {self._region}: {what}, of {counted(keys, 'key')} here{more}")
        for key, (here, there) in list(differing.items())[:_MOST_SHOWN]:
            is_same = here is not None and there is not None and here.stamp == there.stamp
            say(f"  {key}: here {_shown(here)}, there {'the same with another value' if is_same else _shown(there)}")
        if len(differing) > _MOST_SHOWN:
            say(f"  and {len(differing) - _MOST_SHOWN} more (--json lists them)", sys.stderr)

    def _ask(self, site: Transport, wanted: _Range, **arguments: Any) -> dict[str, Any]:
        after, through = wanted
        named = {"region": self._region, "after": after, "through": through, **arguments}
        try:
            answer: dict[str, Any] = site.request("region_digest", named, None)
        except InvalidDestinationException as error:
            raise ValueError(f"{'here' if site is self._here else 'at the other site'} {error}") from error
        return answer

    def _ranges(self) -> tuple[int, list[_Range]]:
        """Return how many keys there are here, and the ranges that differ."""
        keys, found, after = 0, list[_Range](), None
        while True:
            here = self._ask(self._here, (after, None), limit=_RANGE_KEYS)
            wanted = after, here["next"]
            keys += here["count"]
            if (int.from_bytes(here["digest"]), here["count"]) != self._digest_there(wanted):
                found.append(wanted)
            self._tell(f"region {self._region}: compared {counted(keys, 'key')}")
            after = here["next"]
            if after is None:
                return keys, found

    def _digest_there(self, wanted: _Range) -> tuple[int, int]:
        digest = count = 0
        after, through = wanted
        while True:
            found = self._ask(self._there, (after, through), limit=_MOST_KEYS)
            digest, count = digest + int.from_bytes(found["digest"]), count + found["count"]
            after = found["next"]
            if after is None:
                return digest % (1 << 8 * len(found["digest"])), count

    def _differing(self, ranges: list[_Range]) -> dict[str, _Sides]:
        """The keys that differ, up to a limit."""
        found: dict[str, _Sides] = {}
        for wanted in ranges:
            for key, sides in _paired(self._keys(self._here, wanted), self._keys(self._there, wanted)):
                if len(found) >= _MOST_KEYS:
                    return found
                if sides[0] != sides[1]:
                    found[key] = sides
        return found

    def _keys(self, site: Transport, wanted: _Range) -> Iterator[tuple[str, _Side]]:
        after, through = wanted
        while True:
            found = self._ask(site, (after, through), limit=_RANGE_KEYS, each=True)
            for key, at, of, digest in found["keys"]:
                yield key, _Side(Stamp(at, of), digest)
            after = found["next"]
            if after is None:
                return

    def _wait(self) -> int:
        """Wait until nothing waits for the gateway, for some time; return how many messages wait then."""
        begun = time.monotonic()
        while True:
            time.sleep(_PAUSE_SECONDS if time.monotonic() - begun < _PAUSE_SECONDS else _LOOK_SECONDS)
            (found,) = self._here.request("gateways", {"name": self._options.name}, None)
            waiting = int(found["waiting"])
            if not waiting or time.monotonic() - begun >= self._options.wait:
                return waiting
            self._tell(f"region {self._region}: {counted(waiting, 'message', ('waits', 'wait'))} for the gateway")


def _paired(here: Iterator[tuple[str, _Side]], there: Iterator[tuple[str, _Side]]) -> Iterator[tuple[str, _Sides]]:
    """Go through the keys of both sites, each in the order of its bytes, together."""
    one, other = next(here, None), next(there, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one[0].encode() < other[0].encode()):
            assert one is not None
            yield one[0], (one[1], None)
            one = next(here, None)
        elif one is None or other[0].encode() < one[0].encode():
            yield other[0], (None, other[1])
            other = next(there, None)
        else:
            yield one[0], (one[1], other[1])
            one, other = next(here, None), next(there, None)


def _shown(side: _Side | None) -> str:
    if side is None:
        return "not there"
    at = datetime.fromtimestamp(milliseconds_of(side.stamp) / 1000, UTC).isoformat(timespec="milliseconds")
    return f"changed at {at} by site {side.stamp.site}"


def _as_plain(side: _Side | None) -> list[Any] | None:
    return None if side is None else [*side.stamp, side.digest.hex()]
