"""Consume and produce in one transaction: a message is taken and its result sent, or neither.

Run it: ``python -m samples.s03_transacted [URL]``.
"""

import sys

from sdk import AcknowledgeMode, ConnectionFactory


def main(url: str = "embedded:") -> None:
    with ConnectionFactory(url).create_connection() as connection:
        connection.start()
        with connection.create_session() as session:
            producer = session.create_producer(session.create_queue("sample.numbers"))
            for text in ("1", "2", "not a number", "4"):
                producer.send(text)

        with connection.create_session(AcknowledgeMode.TRANSACTED) as session:
            numbers = session.create_consumer(session.create_queue("sample.numbers"))
            squares = session.create_producer(session.create_queue("sample.squares"))
            while (message := numbers.receive(timeout=0.5)) is not None:
                try:
                    squares.send(str(int(message.text) ** 2))
                except ValueError:
                    if message.delivery_count < 3:
                        print(f"rolled back: {message.text!r}, delivery {message.delivery_count}")
                        session.rollback()  # it is redelivered
                        continue
                    print(f"given up: {message.text!r}")
                session.commit()

        with connection.create_session() as session:
            results = session.create_consumer(session.create_queue("sample.squares"))
            while (message := results.receive_nowait()) is not None:
                print(f"square: {message.text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
