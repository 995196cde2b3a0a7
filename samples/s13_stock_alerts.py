"""A region of stock levels, and a continuous query that says what has to be ordered.

Run it: ``python -m samples.s13_stock_alerts [URL]``.
"""

import argparse
import tempfile
import threading

from sdk import ConnectionFactory, QueryListener, RegionEvent

WORDS = {"CREATE": "order", "UPDATE": "still low", "DESTROY": "enough"}


class Orders(QueryListener):
    def __init__(self) -> None:
        self._told = threading.Semaphore(0)

    def on_event(self, event: RegionEvent) -> None:
        left = "gone from the list" if event.value is None else f"{event.value['left']} left"
        print(f"  {WORDS[event.query_operation.name]}: {event.key}, {left}")
        self._told.release()

    def wait(self) -> None:
        """Wait for one more event, so that what is printed is in order."""
        self._told.acquire(timeout=60)


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

        print("screws: 490 left")
        stock.put("screws", {"left": 490})  # enough, as before: the query says nothing
        for key, left in (("screws", 9), ("screws", 7), ("nails", 400)):
            print(f"{key}: {left} left")
            stock.put(key, {"left": left})
            orders.wait()
        print("glue: not sold any more")
        stock.destroy("glue")
        orders.wait()
        low.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="samples.s13_stock_alerts", description=__doc__.partition("\n")[0])
    parser.add_argument("url", nargs="?", metavar="URL", help="default: an engine in this process")
    main(parser.parse_args().url)
