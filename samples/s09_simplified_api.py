"""The simplified API: a context is a connection and a session in one.

Run it: ``python -m samples.s09_simplified_api [URL]``.
"""

import sys

from sdk import AcknowledgeMode, ConnectionFactory


def main(url: str = "embedded:") -> None:
    with ConnectionFactory(url).create_context() as context:
        queue = context.create_queue("sample.context")
        producer = context.create_producer().set_property("from", "here").set_priority(7)
        producer.send(queue, "hello").send(queue, {"order": 17})

        consumer = context.create_consumer(queue)  # starts the connection
        print(consumer.receive_body(str, timeout=5))
        print(consumer.receive_body(dict, timeout=5))

        with context.create_context(AcknowledgeMode.TRANSACTED) as transaction:  # on the same connection
            transaction.create_producer().send(queue, "never seen")
            transaction.rollback()
            transaction.create_producer().send(queue, "committed")
            transaction.commit()
        print(consumer.receive_body(str, timeout=5))


if __name__ == "__main__":
    main(*sys.argv[1:])
