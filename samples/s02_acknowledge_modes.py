"""The acknowledge modes side by side: what a crash leaves behind in each.

A child process receives six of eight messages in each mode, acknowledges (or commits) after the fourth where the
mode has that, and is then killed with SIGKILL, two messages later.  The table shows what the next consumer finds.

Run it: ``python -m samples.s02_acknowledge_modes [DIRECTORY]``.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
import time

from sdk import AcknowledgeMode, ConnectionFactory, Session

MODES = (
    AcknowledgeMode.AUTO,
    AcknowledgeMode.DUPS_OK,
    AcknowledgeMode.CLIENT,
    AcknowledgeMode.INDIVIDUAL,
    AcknowledgeMode.TRANSACTED,
    AcknowledgeMode.NO_ACK,
)


def queue_of(session: Session, mode: AcknowledgeMode):
    return session.create_queue(f"sample.modes.{mode.name}")


def fill(url: str) -> None:
    with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
        for mode in MODES:
            producer = session.create_producer(queue_of(session, mode))
            for number in range(1, 9):
                producer.send(str(number))


def receive_and_die(url: str) -> None:
    connection = ConnectionFactory(url).create_connection()
    connection.start()
    kept = []  # a session without references would be closed
    for mode in MODES:
        session = connection.create_session(mode)
        consumer = session.create_consumer(queue_of(session, mode))
        kept.append(consumer)
        for number in range(1, 7):
            message = consumer.receive(timeout=10)
            if number == 4:
                if mode is AcknowledgeMode.TRANSACTED:
                    session.commit()
                elif mode in (AcknowledgeMode.CLIENT, AcknowledgeMode.INDIVIDUAL):
                    message.acknowledge()
    time.sleep(0.5)  # DUPS_OK acknowledges up to a tenth of a second late
    os.kill(os.getpid(), signal.SIGKILL)


def left_behind(url: str) -> dict[AcknowledgeMode, list[str]]:
    left = {}
    with ConnectionFactory(url).create_connection() as connection:
        connection.start()
        for mode in MODES:
            with connection.create_session() as session:
                consumer = session.create_consumer(queue_of(session, mode))
                left[mode] = []
                while (message := consumer.receive_nowait()) is not None:
                    left[mode].append(message.text + ("*" if message.redelivered else ""))
    return left


def main(directory: str | None = None) -> None:
    # One message at a time, so that what was only prefetched is not in the picture.
    with tempfile.TemporaryDirectory() as temporary:
        url = f"embedded:{directory or temporary}?prefetch_messages=0"
        fill(url)
        child = multiprocessing.get_context("spawn").Process(target=receive_and_die, args=(url,))
        child.start()
        child.join()
        if child.exitcode != -signal.SIGKILL:
            raise RuntimeError(f"the child ended with {child.exitcode}, before it was killed")
        print("sent 1 to 8; received 1 to 6, acknowledged after 4, killed; then there is (* redelivered):")
        for mode, messages in left_behind(url).items():
            print(f"  {mode.name:11} {' '.join(messages)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
