"""Tasks that are cancelled at any await of any call, in all modes, and an account of every message.

The long run: ``python -m tests.sdk.aio.cancellations --cancellations 10000 --seed 1``, embedded and over AMQP.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs

from sdk import AcknowledgeMode, StaleAcknowledgementException, aio
from tests.server_process import ServerProcess

WAIT = 60.0
MODES = tuple(AcknowledgeMode)
#: Tasks that work on one queue together, and those of them that share a session.
TASKS = 4
#: Sends that one account is about.
SENDS = 60


@attrs.define
class Account:
    """What the tasks of one queue saw."""

    mode: AcknowledgeMode
    cancelled: int = 0
    begun: set[str] = attrs.field(factory=set)  #: sends that began, whatever became of them
    sent: set[str] = attrs.field(factory=set)  #: that returned; in a transaction: that was committed
    seen: Counter[str] = attrs.field(factory=Counter)  #: received by a task
    ended: Counter[str] = attrs.field(factory=Counter)  #: acknowledged or committed by a call that returned
    doubtful: set[str] = attrs.field(factory=set)  #: acknowledged or committed by a call that was cancelled
    stray: set[str] = attrs.field(factory=set)  #: sent again in another form

    def check(self, left: Counter[str]) -> None:
        """Hold it against what is left in the queue."""
        mode = self.mode
        everywhere = set(left) | set(self.seen)
        assert everywhere <= self.begun, f"from nowhere: {everywhere - self.begun}"
        assert max(left.values(), default=0) <= 1, f"stored twice: {left}"
        if mode is AcknowledgeMode.NO_ACK:
            assert max(self.seen.values(), default=0) <= 1, f"received twice: {self.seen}"
            return  # what was on its way to a consumer that was closed is gone
        lost = self.sent - everywhere
        assert not lost, f"lost: {lost}"
        back = set(left) & (set(self.ended) - self.doubtful)
        assert not back, f"acknowledged, and there again: {back}"
        if mode in (AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK):
            assert max(self.seen.values(), default=0) <= 1, f"received twice: {self.seen}"
            if mode is AcknowledgeMode.AUTO:
                assert not set(left) & set(self.seen), "received, and there again"
        else:
            gone = self.sent - set(left) - set(self.ended) - self.doubtful
            assert not gone, f"gone, though no task has acknowledged it: {gone}"
            assert max(self.ended.values(), default=0) <= 1, f"ended twice: {self.ended}"


class Work:
    """Tasks that send to one queue and receive from it."""

    def __init__(self, connection: aio.Connection, name: str, mode: AcknowledgeMode, chance: random.Random) -> None:
        self.account = Account(mode)
        self._connection = connection
        self._name = name
        self._chance = chance
        self._number = 0

    async def play(self) -> Account:
        """Send and receive, with cancellations; returns what was seen, checked."""
        mode, account = self.account.mode, self.account
        async with self._connection.create_session(mode) as session:
            queue = session.create_queue(self._name)
            prefetch = self._chance.choice([0, 1, None])
            async with (
                session.create_producer(queue) as producer,
                session.create_consumer(queue, prefetch=prefetch) as consumer,
            ):
                if mode is AcknowledgeMode.TRANSACTED:
                    await self._in_transactions(session, producer, consumer)
                else:
                    await asyncio.gather(*[self._send_some(producer) for _ in range(TASKS // 2)])
                    await asyncio.gather(
                        *[self._send_some(producer) for _ in range(TASKS // 2)],
                        *[self._receive_some(session, consumer) for _ in range(TASKS // 2)],
                    )
                await self._cancelled(self._make_and_close(session))
        async with self._connection.create_session() as session:
            left: Counter[str] = Counter()
            async with session.create_browser(session.create_queue(self._name)) as browser:
                async for message in browser:
                    left[message.body] += 1
        account.check(left)
        await self._connection.request("delete", {"destination": self._name, "force": True})
        return account

    async def _cancelled(self, call: Awaitable[Any]) -> tuple[bool, Any]:
        """Whether the call came to its end, and its result; else it was cancelled at some await."""
        task = asyncio.ensure_future(call)
        kind = self._chance.random()
        if kind < 0.6:  # after some turns of the loop
            for _ in range(self._chance.randrange(12)):
                await asyncio.sleep(0)
        elif kind < 0.8:  # while threads work
            await asyncio.sleep(self._chance.random() * 0.004)
        else:
            await asyncio.wait([task], timeout=0.5)
        task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            self.account.cancelled += 1
            return False, None
        return True, task.result()

    async def _send_some(self, producer: aio.MessageProducer) -> None:
        account = self.account
        for _ in range(SENDS // TASKS):
            self._number += 1
            body = str(self._number)
            account.begun.add(body)
            returned, _ = await self._cancelled(producer.send(body))
            if returned:
                account.sent.add(body)

    async def _receive(self, consumer: aio.MessageConsumer) -> list[Any]:
        """Messages that a task has; none where it was cancelled, or nothing came."""
        seen: list[Any] = []
        timeout = self._chance.choice([None, 0, 0.01, 0.3])
        chosen = self._chance.random()

        async def one() -> None:
            message = await consumer.receive(timeout)
            seen.extend([] if message is None else [message])

        async def several() -> None:
            seen.extend(await consumer.receive_many(self._chance.randrange(1, 5), timeout))

        async def each() -> None:
            async for message in consumer:
                seen.append(message)
                if len(seen) == 3:
                    return
                await asyncio.sleep(0)

        await self._cancelled((one if chosen < 0.5 else several if chosen < 0.75 else each)())
        for message in seen:
            self.account.seen[message.body] += 1
        return seen

    async def _receive_some(self, session: aio.Session, consumer: aio.MessageConsumer) -> None:
        account = self.account
        for _ in range(SENDS // TASKS):
            messages = await self._receive(consumer)
            if account.mode in (AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK, AcknowledgeMode.NO_ACK):
                continue
            if account.mode is AcknowledgeMode.INDIVIDUAL:
                for message in messages:
                    await self._end(message.acknowledge, [message.body])
            elif messages:
                # Everything that the session has received, in whichever task.
                await self._end(session.acknowledge, self._held())

    def _held(self) -> list[str]:
        return [body for body in self.account.seen if body not in self.account.ended]

    async def _end(self, call: Callable[[], Awaitable[None]], bodies: list[str]) -> None:
        async def end() -> None:
            await call()

        before = set(self.account.ended)
        try:
            returned, _ = await self._cancelled(end())
        except StaleAcknowledgementException as error:
            raise AssertionError("stale, though the network was there") from error
        new = [body for body in bodies if body not in before and body not in self.account.ended]
        if returned:
            self.account.ended.update(new)
        else:
            self.account.doubtful.update(new)

    async def _in_transactions(
        self, session: aio.Session, producer: aio.MessageProducer, consumer: aio.MessageConsumer
    ) -> None:
        """One task at a time: a transaction is the session's."""
        account = self.account
        pending: set[str] = set()  #: sends that are in the transaction for certain
        for _ in range(SENDS // 4):
            for _ in range(3):
                self._number += 1
                body = str(self._number)
                account.begun.add(body)
                returned, _ = await self._cancelled(producer.send(body))
                if returned:
                    pending.add(body)
            held = [message.body for message in await self._receive(consumer)]
            if self._chance.random() < 0.3:
                await self._cancelled(session.rollback())
                await session.rollback()
                pending.clear()
                continue
            returned, _ = await self._cancelled(session.commit())
            if returned:
                account.sent |= pending
                account.ended.update(held)
            else:  # done, or not begun: then the next one does it
                account.doubtful.update(held)
                await session.commit()
                account.sent |= pending
            pending.clear()

    async def _make_and_close(self, session: aio.Session) -> None:
        queue = session.create_queue(self._name)
        async with session.create_browser(queue) as browser, session.create_consumer(queue, "no = 'message'"):
            async for _ in browser:
                await asyncio.sleep(0)


async def sweep(url: str, cancellations: int, seed: int, say: Callable[[str], object] = str) -> Counter[str]:
    """Play in each mode in turn until so many tasks were cancelled; returns how many in each."""
    chance, counts, rounds = random.Random(seed), Counter[str](), 0
    async with aio.connect(url) as connection:
        while sum(counts.values()) < cancellations:
            for mode in MODES:
                rounds += 1
                try:
                    async with asyncio.timeout(WAIT):
                        account = await Work(connection, f"cancelled {seed} {rounds}", mode, chance).play()
                except BaseException as error:
                    error.add_note(f"{mode.name}, seed {seed}, round {rounds}")
                    raise
                counts[mode.name] += account.cancelled
            say(f"{sum(counts.values())} tasks cancelled over {url.partition(':')[0]}")
    return counts


def main() -> int:
    """Run, print, return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cancellations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory() as directory, ServerProcess(Path(directory) / "server") as server:
        for url in (f"embedded:{directory}/embedded", server.url):
            counts = asyncio.run(sweep(url, options.cancellations // 2, options.seed, print))
            print(f"{url.partition(':')[0]}: {sum(counts.values())} cancelled, {dict(counts)}: nothing lost or twice")
    return 0


if __name__ == "__main__":
    sys.exit(main())
