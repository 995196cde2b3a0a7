"""A server is killed; a session of each mode prints which errors it gets from that, and what it does.

Run it: ``python -m samples.s11_failover``.  It starts ``holdfast serve`` itself, in a directory of its own.
"""

import re
import subprocess
import sys
import tempfile
import threading
import time

from sdk import (
    AcknowledgeMode,
    ConnectionFactory,
    ConnectionLostException,
    Interrupted,
    JMSException,
    MessageConsumer,
    Restored,
    Session,
)

MODES = [mode for mode in AcknowledgeMode if mode is not AcknowledgeMode.NO_ACK]


class Server:
    """``holdfast serve`` in a process of its own."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.port = 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "broker_adapter.server.cli", "serve", "--data", self._directory]
        self._process = subprocess.Popen(
            [*command, "--listen", f"127.0.0.1:{self.port}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        found = re.search(r"ready on amqp://[^:]+:(\d+)", self._process.stdout.readline())
        self.port = int(found[1])

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


def work(session: Session, mode: AcknowledgeMode, killed: threading.Event) -> list[str]:
    """Receive three of five messages, have the server killed, and go on; returns what was seen."""
    queue = session.create_queue(f"sample.failover.{mode.name}")
    producer = session.create_producer(queue)
    for number in range(1, 6):
        producer.send(str(number))
    if session.transacted:
        session.commit()
    with session.create_consumer(queue) as consumer:
        return received(session, consumer, killed)


def received(session: Session, consumer: MessageConsumer, killed: threading.Event) -> list[str]:
    seen = []
    for _ in range(3):
        message = consumer.receive(timeout=5)
        seen.append(message.text)
    killed.wait(30)
    seen.append("| killed |")
    try:
        if session.transacted:
            session.commit()
        else:
            message.acknowledge()
    except JMSException as error:
        seen.append(f"{type(error).__name__} |")
    while (message := consumer.receive(timeout=1)) is not None:
        seen.append(message.text + ("*" if message.redelivered else ""))
        message.acknowledge()
    if session.transacted:
        session.commit()
    return seen


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        server = Server(directory)
        told = []
        restored = threading.Event()

        def happened(event: object) -> None:
            if isinstance(event, Interrupted | Restored):
                told.append(type(event).__name__)
            if isinstance(event, Restored):
                restored.set()

        with ConnectionFactory(f"amqp://127.0.0.1:{server.port}").create_connection() as connection:
            lost = []
            connection.exception_listener = lost.append
            connection.event_listener = happened
            connection.start()
            killed = threading.Event()
            results: dict[AcknowledgeMode, list[str]] = {}

            def run(mode: AcknowledgeMode) -> None:
                with connection.create_session(mode) as session:
                    results[mode] = work(session, mode, killed)

            threads = [threading.Thread(target=run, args=(mode,)) for mode in MODES]
            for thread in threads:
                thread.start()
            time.sleep(1)  # each has received three messages
            server.kill()
            server.start()
            restored.wait(30)
            killed.set()
            for thread in threads:
                thread.join()
            losses = sum(isinstance(error, ConnectionLostException) for error in lost)
        server.kill()
        print(f"the connection: {' '.join(told)}; reports of ConnectionLostException: {losses}")
        print("each session received 1 to 3, then the server was killed and started again (* redelivered):")
        for mode in MODES:
            print(f"  {mode.name:11} {' '.join(results[mode])}")


if __name__ == "__main__":
    main()
