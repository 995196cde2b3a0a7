"""Request and reply over a temporary queue.

Run it: ``python -m samples.s05_request_reply [URL]``.
"""

import sys

from sdk import ConnectionFactory, Message, Session


def serve(session: Session) -> None:
    """Answer each request at the address that it names."""
    replies = session.create_producer(None)

    def answer(request: Message) -> None:
        reply = session.create_text_message(request.text.upper())
        reply.correlation_id = request.message_id
        replies.send(reply, destination=request.reply_to)

    session.create_consumer(session.create_queue("sample.requests")).listener = answer


def main(url: str = "embedded:") -> None:
    factory = ConnectionFactory(url)
    with factory.create_connection() as server, factory.create_connection() as client:
        serve(server.create_session())
        server.start()
        client.start()
        with client.create_session() as session:
            inbox = session.create_temporary_queue()
            requests = session.create_producer(session.create_queue("sample.requests"))
            answers = session.create_consumer(inbox)
            for word in ("lift", "truck"):
                request = session.create_text_message(word)
                request.reply_to = inbox
                requests.send(request, time_to_live=10)
                reply = answers.receive(timeout=10)
                matches = reply is not None and reply.correlation_id == request.message_id
                print(f"{word} -> {reply.text if reply else 'no answer'} (correlated: {matches})")


if __name__ == "__main__":
    main(*sys.argv[1:])
