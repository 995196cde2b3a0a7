"""Send three messages and receive them.

Run it: ``python -m samples.s01_send_and_receive [URL]``; the default is an engine in memory, in this process.
"""

import sys

from sdk import ConnectionFactory


def main(url: str = "embedded:") -> None:
    with ConnectionFactory(url).create_connection() as connection:
        connection.start()
        with connection.create_session() as session:
            queue = session.create_queue("sample.hello")
            producer = session.create_producer(queue)
            producer.send("a string becomes a text message")
            producer.send({"order": 17, "paid": True})
            producer.send(b"\x00\x01\x02")

            consumer = session.create_consumer(queue)
            while (message := consumer.receive(timeout=0.5)) is not None:
                print(f"{type(message).__name__:12} {message.body!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
