"""A region of stock levels, and a continuous query that says what has to be ordered.

Run it: ``python -m samples.s13_stock_alerts [URL]``.
"""

import sys
import tempfile
import threading

from sdk import ConnectionFactory, QueryListener, RegionEvent

WORDS = {"CREATE": "order", "UPDATE": "still low", "DESTROY": "enough"}


class Orders(QueryListener):
    def __init__(self) -> None:
        self.is_closed = threading.Event()

    def on_event(self, event: RegionEvent) -> None:
        left = "gone from the list" if event.value is None else f"{event.value['left']} left"
        print(f"{WORDS[event.query_operation.name]}: {event.key}, {left}")
        if event.key == "end":
            self.is_closed.set()


def main(url: str | None = None) -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        ConnectionFactory(url or f"embedded:{directory}").create_connection() as connection,
    ):
        connection.start()
        stock = connection.create_session().create_region("sample.stock")
        stock.put_all({"nails": {"left": 3}, "screws": {"left": 500}, "glue": {"left": 0}})

        low = stock.create_query("low", "left < 10")
        orders = Orders()
        low.add_listener(orders)
        for key, value in low.execute_with_initial_results().items():
            print(f"low by now: {key}, {value['left']} left")

        stock.put("screws", {"left": 9})
        stock.put("screws", {"left": 7})
        stock.put("nails", {"left": 400})
        stock.destroy("glue")
        stock.put("end", {"left": 0})
        orders.is_closed.wait(60)
        low.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
