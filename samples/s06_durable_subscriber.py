"""A durable subscription keeps what is published while its subscriber is away.

Run it: ``python -m samples.s06_durable_subscriber [URL]``.
"""

import sys
import tempfile

from sdk import ConnectionFactory


def subscribe(url: str, label: str) -> None:
    with ConnectionFactory(url).create_connection(client_id="reader-1") as connection:
        connection.start()
        with connection.create_session() as session:
            subscriber = session.create_durable_consumer(session.create_topic("sample.news"), "news")
            while (message := subscriber.receive(timeout=0.3)) is not None:
                print(f"{label}: {message.text}")


def publish(url: str, *texts: str) -> None:
    with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
        producer = session.create_producer(session.create_topic("sample.news"))
        for text in texts:
            producer.send(text)


def unsubscribe(url: str) -> None:
    with ConnectionFactory(url).create_connection(client_id="reader-1") as connection:
        connection.create_session().unsubscribe("news")


def main(url: str | None = None) -> None:
    with tempfile.TemporaryDirectory() as directory:
        url = url or f"embedded:{directory}"
        publish(url, "without a subscription this is lost")
        subscribe(url, "first visit")
        publish(url, "published while the reader is away", "and another")
        subscribe(url, "second visit")
        unsubscribe(url)


if __name__ == "__main__":
    main(*sys.argv[1:])
