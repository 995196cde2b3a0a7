"""Selectors: consumers that take what they are for, from one queue; a browser with a selector.

Run it: ``python -m samples.s10_selectors [URL]``.
"""

import sys

from sdk import ConnectionFactory, InvalidSelectorException


def main(url: str = "embedded:") -> None:
    with ConnectionFactory(url).create_connection() as connection:
        connection.start()
        with connection.create_session() as session:
            queue = session.create_queue("sample.parcels")
            producer = session.create_producer(queue)
            for name, kilograms, country in (
                ("book", 1, "PE"),
                ("sofa", 80, "FR"),
                ("lamp", 4, "FR"),
                ("desk", 40, "PE"),
            ):
                parcel = session.create_text_message(name)
                parcel.properties.update({"kilograms": kilograms, "country": country})
                producer.send(parcel, priority=7 if country == "PE" else 4)

            abroad = session.create_browser(queue, selector="country NOT IN ('PE') OR JMSPriority < 5")
            print("abroad:", *(parcel.text for parcel in abroad))

            lorry = session.create_consumer(queue, selector="kilograms BETWEEN 20 AND 1000")
            bicycle = session.create_consumer(queue, selector="kilograms < 20 AND country IS NOT NULL")
            for vehicle, consumer in (("lorry", lorry), ("bicycle", bicycle)):
                while (parcel := consumer.receive(timeout=0.5)) is not None:
                    print(f"{vehicle}: {parcel.text}")

            try:
                session.create_consumer(queue, selector="kilograms >")
            except InvalidSelectorException as error:
                print(error.reason)


if __name__ == "__main__":
    main(*sys.argv[1:])
