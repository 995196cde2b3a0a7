"""Messages as consumers, browsers and selectors get them; those that cannot be trusted are put aside."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.effects import Effects, Outgoing
from broker_adapter.engine.commands.selection import Formats, Selectable
from broker_adapter.engine.cycle.inbox import Inbox
from broker_adapter.engine.queues.statistics import Totals
from broker_adapter.engine.records.layout import FLAG_ANNOTATED, RawEntry, entry_key, unpack_entry_key
from broker_adapter.engine.store.stores import Stores
from broker_adapter.envelope import REGION_PROPERTY, REPLAYED_PROPERTY

#: What a named tuple does, without the call of a function of Python.
_new = tuple.__new__


class MessageReads:
    """Joins entries with the bodies and annotations of their messages.

    Args:
        stores: of the engine.
        formats: the message formats that selectors can be applied to.
        totals: counts what goes into quarantine.
        inbox: gets the commands that take messages away which cannot be trusted.
    """

    def __init__(self, stores: Stores, formats: Formats, totals: Totals, inbox: Inbox) -> None:
        self._stores = stores
        self._bodies = stores.bodies
        self._annotations = stores.annotations
        self._formats = formats
        self._totals = totals
        self._commands: deque[c.Command | c.DeferredCommands] = inbox.commands

    def handouts(
        self,
        messages: Sequence[Outgoing],
        consumer: int | None,
        pending: Effects | None = None,
        began_at: int | None = None,
    ) -> list[c.Handout]:
        """Deliveries with their payloads; those whose record cannot be trusted are left out and reported.

        Args:
            messages: what to deliver.
            consumer: that holds them, so that they can be taken back; None where none does.
            pending: what is not in the stores yet, where the cycle takes them away; None: a browser reads them.
            began_at: the position of the first message that came when the consumer was there; None: a browser reads.
        """
        bodies = self._bodies([(each.message, each.flags) for each in messages], pending)
        handouts = []
        distrusted: list[Outgoing] = []
        for each, body in zip(messages, bodies, strict=True):
            number, position, count, _, flags, key = each
            if body is None:
                distrusted.append(each)
                continue
            annotations = self._annotations(key, flags, pending) if flags & FLAG_ANNOTATED else None
            if annotations is not None and began_at is not None and REGION_PROPERTY in annotations:
                annotations = {**annotations, REPLAYED_PROPERTY: position < began_at}
            handouts.append(_new(c.Handout, (number, position, count, body[0], body[1], annotations, False)))
        if distrusted:
            self._pass_over(distrusted, consumer, pending)
        return handouts

    def _pass_over(self, distrusted: Sequence[Outgoing], consumer: int | None, pending: Effects | None) -> None:
        """Put messages aside that cannot be delivered, in one transaction; the arguments are those of ``handouts``."""
        if consumer is None and pending is None:
            for each in distrusted:
                queue, _, _ = unpack_entry_key(each.key)
                wanted = c.Range(queue, each.position, each.position, 1, frozenset((each.position,)))
                self._commands.append(c.SetAside(wanted))
            return
        are_aside = self._stores.set_messages_aside([(each.message, each.key) for each in distrusted])
        for each in distrusted:
            if consumer is not None:
                self._commands.append(c.Quarantined(consumer, each.number, not are_aside))
            elif pending is not None and not are_aside:
                pending.durable.keep(each.message, each.key)
        if consumer is None and are_aside:
            self._totals.quarantined += len(distrusted)

    def selectables(self, entries: Sequence[RawEntry], pending: Effects | None) -> list[tuple[RawEntry, Selectable]]:
        """Messages with what selectors can match; those that cannot be trusted are left out.

        Args:
            entries: of the messages.
            pending: what is decided and not committed yet, where that counts as well.
        """
        bodies = self._bodies([(entry.number, entry.flags) for entry in entries], pending)
        messages = []
        for entry, body in zip(entries, bodies, strict=True):
            if body is None:
                continue
            annotations = None
            if entry.flags & FLAG_ANNOTATED:
                key = entry_key(entry.queue, entry.lane, entry.position)
                annotations = self._annotations(key, entry.flags, pending)
            messages.append((entry, Selectable(self._formats, *body, entry.delivery_count, annotations)))
        return messages
