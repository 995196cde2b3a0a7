"""Asynchronous delivery: a listener is called for each message, in the session's thread.

Run it: ``python -m samples.s04_listener [URL]``.
"""

import sys
import threading

from sdk import ConnectionFactory, Message


def main(url: str = "embedded:") -> None:
    finished = threading.Event()
    handled = []

    def handle(message: Message) -> None:
        if message.body == "bad" and not message.redelivered:
            raise ValueError("a listener that raises gets the message again, marked as redelivered")
        print(f"handled: {message.body}{' (redelivered)' if message.redelivered else ''}")
        handled.append(message)
        if len(handled) == 3:
            finished.set()

    with ConnectionFactory(url).create_connection() as connection:
        connection.exception_listener = lambda error: print(f"told: {error}")
        with connection.create_session() as session, connection.create_session() as sending:
            consumer = session.create_consumer(session.create_queue("sample.listener"))
            consumer.listener = handle
            connection.start()
            producer = sending.create_producer(sending.create_queue("sample.listener"))
            for text in ("good", "bad", "better"):
                producer.send(text)
            if not finished.wait(timeout=10):
                raise TimeoutError("the listener was not called")


if __name__ == "__main__":
    main(*sys.argv[1:])
