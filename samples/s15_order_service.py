"""An order service: workers share a queue, the orders of a customer stay in order, and a bad one stops nobody.

Run it: ``python -m samples.s15_order_service [URL]``.
"""

import sys
import threading

from sdk import ConnectionFactory, Message

ORDERS = [
    ("Ada", {"item": "lamp"}),
    ("Bob", {"item": "desk"}),
    ("Ada", {"itme": "chair"}),
    ("Ada", {"item": "sofa"}),
    ("Bob", {"item": "book"}),
]


def main(url: str = "embedded:") -> None:
    delivered: dict[str, list[str]] = {"Ada": [], "Bob": []}
    ended = threading.Semaphore(0)

    def work(order: Message) -> None:
        if "item" not in order.body:
            order.reject(f"no item in {order.body}")  # at once; one that raises each time is tried ten times
        elif order.body["item"] == "desk" and order.delivery_count < 3:
            raise ConnectionError("the warehouse is away")  # Bob's orders wait for the next try, and no others
        else:
            delivered[order.group_id].append(f"{order.body['item']} (delivery {order.delivery_count})")
        ended.release()

    with ConnectionFactory(url).create_connection() as connection:
        connection.exception_listener = lambda _error: None
        session = connection.create_session()
        queue = session.create_queue("sample.orders")
        producer = session.create_producer(queue)
        for customer, order in ORDERS:
            producer.send(order, group_id=customer)  # a customer is one worker's while it has orders of them
        workers = [connection.create_session() for _ in range(4)]
        for worker in workers:
            worker.create_consumer(queue).listener = work
        connection.start()
        for _ in ORDERS:
            if not ended.acquire(timeout=60):
                raise TimeoutError("an order was not processed")
        dead = session.create_consumer(session.create_queue("DLQ")).receive(timeout=60)
    for customer, items in delivered.items():
        print(f"{customer}: {', '.join(items)}")
    print(f"in the DLQ: {dead.body}, {dead.properties['JMS_HOLDFAST_DEAD_LETTER_REASON']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
