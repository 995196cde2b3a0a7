"""A client whose frames are changed on their way, in both directions: it may get any error of ours, and no other."""

from __future__ import annotations

import threading
import time
from collections import Counter

from sdk import AcknowledgeMode, Connection, ConnectionFactory, JMSException, Message
from tests.faults.proxy import Proxy

#: Longest that one life of the client may take, in seconds; all of its waits together are far below it.
LIFETIME = 300.0
QUEUE = "fuzzed"
_OPTIONS = (
    "?failover=nofailover&connect_timeout_seconds=2&request_timeout_seconds=1&send_timeout_seconds=1"
    "&close_timeout_seconds=1&poll_timeout_seconds=1&idle_timeout_seconds=2"
)


class Victim:
    """Connects again and again through a proxy that changes frames, and does a little of everything.

    Args:
        proxy: changes frames, as its ``mutate`` was told.
    """

    def __init__(self, proxy: Proxy) -> None:
        self.lives = 0  #: connections that were tried
        self.finished = 0  #: of them, those whose work was done without an error
        self.raised: Counter[str] = Counter()
        self.broken: list[str] = []
        self._url = proxy.url + _OPTIONS
        self._stopped = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="victim", daemon=True)

    def start(self) -> None:
        """Set to work."""
        self._thread.start()

    def stop(self) -> None:
        """End, once the life under way is over; a life that does not end is a broken promise."""
        self._stopped.set()
        self._thread.join(LIFETIME)
        if self._thread.is_alive():
            self.broken.append(f"a client with changed frames hangs since {time.monotonic() - self._began:.0f} s")

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._began = time.monotonic()
            self.lives += 1
            try:
                with ConnectionFactory(self._url).create_connection() as connection:
                    self._work(connection)
                self.finished += 1
            except JMSException as error:
                self.raised[type(error).__name__] += 1
            except Exception as error:
                self.broken.append(f"a client with changed frames got {error!r}")
            if time.monotonic() - self._began > LIFETIME:
                self.broken.append(f"a life took {time.monotonic() - self._began:.0f} s")

    def _work(self, connection: Connection) -> None:
        connection.start()
        for mode in (AcknowledgeMode.CLIENT, AcknowledgeMode.TRANSACTED):
            with connection.create_session(mode) as session:
                queue = session.create_queue(QUEUE)
                producer = session.create_producer(queue)
                for size in (1, 5_000):
                    producer.send("x" * size)
                if session.transacted:
                    session.create_region(QUEUE).put_all({"a": "x", "b": "x" * 5_000})
                    session.commit()
                consumer = session.create_consumer(queue)
                message: Message | None = None
                for _ in range(3):
                    message = consumer.receive(0.2) or message
                if session.transacted:
                    session.commit()
                elif message is not None:
                    message.acknowledge()
                session.delete_temporary(session.create_temporary_queue())
        connection.statistics()
