"""Request and reply over a temporary queue.

Run it: ``python -m samples.s05_request_reply [URL]``.
"""

import sys

from sdk import ConnectionFactory, Message, Requestor, Session, reply


def serve(session: Session) -> None:
    """Answer each request at the address that it names."""

    def answer(request: Message) -> None:
        reply(session, request, request.text.upper())

    session.create_consumer(session.create_queue("sample.requests")).listener = answer


def main(url: str = "embedded:") -> None:
    factory = ConnectionFactory(url)
    with factory.create_connection() as server, factory.create_connection() as client:
        serve(server.create_session())
        server.start()
        client.start()
        with (
            client.create_session() as session,
            Requestor(session, session.create_queue("sample.requests")) as requestor,
        ):
            for word in ("lift", "truck"):
                print(f"{word} -> {requestor.request(word, timeout=10).text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
