"""Consumers and browsers: how they attach, their credit, their drains, and how they go.

Queues that have consumers share what may be ready in memory.  Some that have none keep what is ready for a while, for
consumers that come and go.
"""

from __future__ import annotations

from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.decision_time import DecisionTime
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.queues.directory import Client, Directory
from broker_adapter.engine.queues.queue import Browser, Consumer, QueueState
from broker_adapter.selectors.language import Selector

#: Queues without consumers that keep what is ready in memory, for consumers that come and go.
IDLE_WINDOWS = 64


class Consumers:
    """The consumers and browsers of all queues.

    Attributes:
        browsing: browsers that have got credit or are to be drained in this decision.
        drains: consumers whose drain is not answered yet.
        idle_windows: queues without consumers that keep something ready in memory, by number.
    """

    def __init__(self, directory: Directory, time: DecisionTime) -> None:
        self._directory = directory
        self._by_number = directory.consumers
        self._changed = directory.changed
        self._memory = directory.memory
        self._time = time
        self.browsing: dict[int, Browser] = {}
        self.drains: list[tuple[Consumer, c.Reply | None]] = []
        self.idle_windows: dict[int, QueueState] = {}
        self._consumed_queues = 0
        self._next_number = 1

    def browse(self, client: Client, queue: QueueState, command: c.Attach, selector: Selector | None) -> Browser:
        """Attach a browser."""
        browser = Browser(self._next_number, client.id, queue, command.sink, command.slice_bytes, selector)
        self._next_number += 1
        self._directory.browsers[browser.id] = client.browsers[browser.id] = browser
        return browser

    def attach(
        self, client: Client, queue: QueueState, command: c.Attach, selector: Selector | None, effects: Effects
    ) -> Consumer:
        """Attach a consumer."""
        consumer = Consumer(
            self._next_number,
            client.id,
            queue,
            command.sink,
            command.presettled,
            command.slice_bytes,
            selector,
            command.exclusive,
            command.ended,
            command.keep_order,
        )
        self._next_number += 1
        self._by_number[consumer.id] = client.consumers[consumer.id] = consumer
        if not queue.consumers:
            self.idle_windows.pop(queue.id, None)
            self._consumed_queues += 1
            self._memory.share(self._consumed_queues)
        queue.add_consumer(consumer)
        if queue.exclusive == [consumer]:
            queue.serve_only(consumer, effects)
        return consumer

    def let_go(self, consumer: Consumer, deliveries: int) -> None:
        """A consumer holds so many deliveries less: it, or others, may get more."""
        self._memory.in_hand -= deliveries
        if consumer.attached:
            consumer.queue.offer(consumer)

    def end_browser(self, browser: Browser, effects: Effects) -> None:
        """Answer the drains of a browser that goes."""
        self.browsing.pop(browser.id, None)
        effects.replies += [(reply, browser.credit) for reply in browser.drains]
        browser.drains.clear()
        browser.credit = 0
        browser.queue.note_use(self._time.elapsed_ms)

    def end(self, consumer: Consumer, effects: Effects) -> None:
        """Detach a consumer, if it is not; it gets nothing more, and may still hold deliveries."""
        if consumer.attached:
            consumer.attached = False
            consumer.credit = 0
            queue = consumer.queue
            queue.remove_consumer(consumer, effects)
            for entry in queue.backoff.take_of(consumer):
                queue.give_back(entry, effects)
            self._changed[queue.id] = queue
            if not queue.consumers:
                self._consumed_queues -= 1
                self._memory.share(self._consumed_queues)
                queue.note_use(self._time.elapsed_ms)

    def credit(self, command: c.Credit, now_ms: int, effects: Effects) -> None:
        """Carry out a Credit."""
        consumer = self._by_number.get(command.consumer)
        if consumer is not None and consumer.attached:
            consumer.credit += command.messages
            consumer.room_bytes = consumer.slice_bytes
            consumer.queue.offer(consumer)
            self._changed[consumer.queue.id] = consumer.queue
        elif command.consumer in self._directory.browsers:
            browser = self.browsing[command.consumer] = self._directory.browsers[command.consumer]
            browser.credit += command.messages
            browser.room_bytes = browser.slice_bytes
        effects.answer(command, None)

    def drain(self, command: c.Drain, now_ms: int, effects: Effects) -> None:
        """Carry out a Drain."""
        consumer = self._by_number.get(command.consumer)
        if command.consumer in self._directory.browsers:
            browser = self.browsing[command.consumer] = self._directory.browsers[command.consumer]
            browser.room_bytes = browser.slice_bytes
            if command.reply is not None:
                browser.drains.append(command.reply)
            return
        if consumer is None or not consumer.attached:
            effects.answer(command, 0)
            return
        consumer.room_bytes = consumer.slice_bytes
        consumer.queue.offer(consumer)
        self._changed[consumer.queue.id] = consumer.queue
        self.drains.append((consumer, command.reply))

    def answer_drains(self, effects: Effects) -> None:
        """Answer the drains of consumers for which there is nothing more."""
        waiting = []
        for consumer, reply in self.drains:
            if consumer.credit and (consumer.is_waiting or consumer.queue.id in self._changed):
                # There may be more for it.
                waiting.append((consumer, reply))
                continue
            dropped, consumer.credit = consumer.credit, 0
            if reply is not None:
                effects.replies.append((reply, dropped))
        self.drains = waiting

    def keep_window(self, queue: QueueState, effects: Effects) -> None:
        """Keep what is ready of a queue without consumers in memory, until many others do the same."""
        self.idle_windows.pop(queue.id, None)
        self.idle_windows[queue.id] = queue
        if len(self.idle_windows) > IDLE_WINDOWS:
            oldest = next(iter(self.idle_windows))
            self.idle_windows.pop(oldest).drop_window()
            effects.touches_unloaded = True  # it may have lost entries in this cycle
