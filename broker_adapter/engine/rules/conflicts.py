"""The value of a key that two sites have changed: that of the newer change, or what the application says.

The application names a function, the *resolver*.  It is asked where a value of another site meets one that was put at a
site other than that.  What it returns, unless that is the value of the newer change, is put as a change that is made
here: it is newer than both, and goes to all sites.  There the newer one holds, without a question: so a change of a
key makes one further change at each site at most, and all become equal, whatever a resolver returns.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, NamedTuple

from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.commands.failures import message_too_large
from broker_adapter.engine.commands.selection import Formats
from broker_adapter.engine.regions.key_records import KeyRecord, KeyState, Wanted
from broker_adapter.engine.regions.stamps import Stamp
from broker_adapter.envelope import BodyKind, pack
from broker_adapter.errors import InvalidURLException
from broker_adapter.settings import EngineSettings

#: The kind of a body of each type.
_KINDS: Final[dict[type, BodyKind]] = {
    str: BodyKind.TEXT,
    bytes: BodyKind.BYTES,
    dict: BodyKind.MAP,
    list: BodyKind.STREAM,
}


class Conflict(NamedTuple):
    """Two values of a key, which are a str, bytes, a dict or a list."""

    region: str
    key: str
    here: Any
    there: Any  #: of the other site
    here_stamp: Stamp
    there_stamp: Stamp


#: Returns the value that the key is to have; None: that of the newer change.
Resolver = Callable[[Conflict], Any]


class Conflicts:
    """Resolves conflicts.

    Args:
        settings: name the resolver.
        formats: the messages that the engine can read.

    Raises:
        InvalidURLException: there is no such function.
    """

    def __init__(self, settings: EngineSettings, formats: Formats) -> None:
        self._resolver = None if settings.resolver is None else _resolver(settings.resolver)
        self._most_bytes = settings.max_message_bytes
        self._formats = formats

    def resolved(
        self,
        region: str,
        change: e.KeyChange,
        before: KeyRecord | None,
        old: tuple[int, bytes] | None,
        effects: Effects,
    ) -> e.KeyChange:
        """Return the change to be made in place of one of another site.

        Args:
            region: its name.
            change: of another site.
            before: what is known of the key.
            old: format and payload of its value; None: it has none.
            effects: of the decision.
        """
        resolver, stamp = self._resolver, change.stamp
        if resolver is None or stamp is None or before is None or old is None or change.wanted is not Wanted.PUT:
            return change
        if before.state is not KeyState.VALID or before.stamp.site == stamp.site or change.is_resolved:
            return change
        try:
            here = self._formats.read_whole(*old)
            there = self._formats.read_whole(change.message.format, change.message.payload)
            value = resolver(Conflict(region, change.key, here.body, there.body, before.stamp, stamp))
            if value is None or value == (there.body if stamp > before.stamp else here.body):
                return change
            envelope = there._replace(body_kind=_KINDS[type(value)], body=value, identity=None)
            message = c.from_envelope(pack(envelope), envelope)
            if len(message.payload) > self._most_bytes:
                raise message_too_large(len(message.payload), self._most_bytes)
        except BaseException as error:  # also of sys.exit: the engine goes on
            text = "! the resolver failed for key %r of region %r, and the newer value holds: %r"
            effects.warn(("resolver", region), text, change.key, region, error)
            return change
        return change._replace(message=message, stamp=None, sites=(), is_resolved=True)


def _resolver(named: str) -> Resolver:
    """Return the function of a name."""
    module, _, name = named.partition(":")
    try:
        found: Resolver = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidURLException(f"the option resolver={named!r} is not module:function: {error}") from error
    if not callable(found):
        raise InvalidURLException(f"the option resolver={named!r} is not module:function, but names {found!r:.100}")
    return found
