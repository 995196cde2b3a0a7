"""What browsers get: the messages of their snapshots, as far as their credit goes, after each commit."""

from __future__ import annotations

import time
from typing import Final

from broker_adapter.engine.commands.callbacks import Tell, tell
from broker_adapter.engine.commands.effects import Outgoing
from broker_adapter.engine.cycle.message_reads import MessageReads
from broker_adapter.engine.queues.directory import Directory
from broker_adapter.engine.queues.queue import Browser
from broker_adapter.engine.records.layout import RawEntry, entry_key
from broker_adapter.engine.rules.matching import Matching
from broker_adapter.engine.store.stores import Stores
from broker_adapter.selectors.language import Selector

#: Entries that a browser gets, or that its selector is matched with, at once.
BROWSED_ENTRIES: Final = 5_000
#: Time that all browsers take in one cycle, in seconds: a selector may take up to 20 milliseconds for each message.
#: Each gets at least one message further.
BROWSE_SECONDS: Final = 0.02


class Browsing:
    """The browsers that have credit.

    Args:
        stores: of the engine.
        directory: of the engine.
        matching: applies selectors.
        messages: with their bodies.
        hand_out: has messages leave for a browser.
        answer: has an answer leave.

    Attributes:
        waiting: those whose turn comes in the next cycle.
    """

    def __init__(
        self,
        stores: Stores,
        directory: Directory,
        matching: Matching,
        messages: MessageReads,
        hand_out: Tell = tell,
        answer: Tell = tell,
    ) -> None:
        self.waiting: list[Browser] = []
        self._stores = stores
        self._directory = directory
        self._matching = matching
        self._messages = messages
        self._hand_out = hand_out
        self._answer = answer

    def serve(self, browsers: list[Browser], now_ms: int) -> None:
        """Give those that wait, and these behind them, what they have credit for, as far as the time goes."""
        turns, self.waiting = self.waiting + browsers, []
        end = time.monotonic() + BROWSE_SECONDS
        for index, browser in enumerate(turns):
            if index and time.monotonic() > end:
                self.waiting[:0] = turns[index:]  # it is their turn first in the next cycle
                break
            self._browse(browser, now_ms, end)

    def _browse(self, browser: Browser, now_ms: int, end: float) -> None:
        """Give a browser what it has credit for, and tell those that wait for the end; ``end``: when to pause."""
        complete = False
        if browser.credit > 0 and browser.room_bytes > 0 and browser.queue.id in self._directory.queues:
            limit = BROWSED_ENTRIES if browser.selector is not None else min(browser.credit, BROWSED_ENTRIES)
            found = self._stores.browse(browser.queue.id, *browser.place, limit)
            complete = found.complete
            held = self._held_positions(browser.queue.id)
            messages: list[Outgoing] = []
            examined = 0
            for entry in found.entries:
                if browser.room_bytes <= 0 or len(messages) == browser.credit or (examined and time.monotonic() > end):
                    complete = False
                    break
                browser.place = (entry.lane, entry.position)
                if entry.position > browser.through or entry.position in held:
                    continue
                if entry.expires_at_ms and entry.expires_at_ms <= now_ms:
                    continue
                if browser.selector is not None:
                    examined += 1
                    if not self._is_wanted(browser.selector, entry):
                        continue
                number = browser.next_number
                browser.next_number += 1
                browser.room_bytes -= entry.size
                key = entry_key(entry.queue, entry.lane, entry.position)
                messages.append(Outgoing(number, entry.position, entry.delivery_count, entry.number, entry.flags, key))
            handouts = self._messages.handouts(messages, None)
            browser.credit -= len(handouts)
            if handouts:
                self._hand_out(browser.sink, handouts)
        else:
            complete = browser.queue.id not in self._directory.queues
        if browser.credit > 0 and browser.room_bytes > 0 and not complete:
            self.waiting.append(browser)
            return
        if browser.drains:
            dropped, browser.credit = browser.credit, 0
            replies, browser.drains = browser.drains, []
            for reply in replies:
                self._answer(reply, dropped)

    def _is_wanted(self, selector: Selector, entry: RawEntry) -> bool:
        messages = self._messages.selectables((entry,), None)
        return any(self._matching.is_selected(selector, message) for _, message in messages)

    def _held_positions(self, queue: int) -> set[int]:
        """Positions of a queue that are in consumers' hands."""
        return {
            entry.position
            for consumer in self._directory.consumers.values()
            if consumer.queue.id == queue
            for entry in consumer.unsettled.values()
        }
