"""A year of departures through everything, with the server killed on the way, and every figure checked.

1. ``holdfast serve`` runs in a process of its own.
2. One process sends 336,776 departures in transactions; another takes them in CLIENT mode and forwards the late ones
   to one queue and the rest to another.  Half-way the server is killed with SIGKILL, and started again.
3. A Spark job reads the rest as a DataFrame.  A streaming query writes delays by carrier to another queue; the server
   is killed again.
4. A consumer prints the mean delays as a table, and draws them.
5. Every figure must equal what pyarrow computes straight from the file; a difference is exit status 1.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from samples.demo import departures
from samples.demo.programs import forward, produce
from samples.demo.servers import Server, check, console
from sdk import ConnectionFactory

mpl.use("Agg")
from matplotlib import pyplot as plt

PICTURE = Path("build", "demo", "mean_delay_by_carrier.png")
#: Longest time for all of it, in seconds.
PATIENCE = 600


def move(server: Server, total: int) -> None:
    """Produce and forward, with the server killed half-way."""
    context = multiprocessing.get_context("spawn")
    sent, forwarded, duplicates, cut_producer, cut_forwarder = (context.Value("q", 0) for _ in range(5))
    workers = [
        context.Process(target=produce, args=(server.url, total, sent, cut_producer)),
        context.Process(target=forward, args=(server.url, total, forwarded, duplicates, cut_forwarder)),
    ]
    columns = (TextColumn("{task.description:22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        bar_sent, bar_forwarded = bars.add_task("sent", total=total), bars.add_task("taken and forwarded", total=total)
        for worker in workers:
            worker.start()
        deadline = time.monotonic() + PATIENCE
        while any(worker.is_alive() for worker in workers):
            bars.update(bar_sent, completed=sent.value)
            bars.update(bar_forwarded, completed=forwarded.value)
            if server.kills == 0 and sent.value >= total * 2 // 5:
                server.kill_and_start("producer and consumer at work")
            if time.monotonic() > deadline or any(worker.exitcode for worker in workers):
                for worker in workers:
                    worker.kill()
                raise RuntimeError("a program of the demo failed")
            time.sleep(0.05)
        bars.update(bar_sent, completed=sent.value)
        bars.update(bar_forwarded, completed=forwarded.value)
    console.print(
        f"the connections of both programs were lost {cut_producer.value + cut_forwarder.value} times, and restored by"
        f" themselves; {duplicates.value} departures came to the forwarder twice, and are told apart by their number"
    )


def run_spark(server: Server, checkpoint: str, batch: int) -> dict[str, int]:
    """Both Spark jobs, with the server killed during the streaming query, which takes so many messages at a time.

    Returns:
        The counts of the batch job.
    """
    command = [sys.executable, "-m", "samples.demo.spark_jobs", server.url, checkpoint, str(batch)]
    counts: dict[str, int] = {}
    with (
        console.status("Spark starts ...") as status,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if said["what"] == "batch":
                counts = said["counts"]
                console.print(f"Spark read {sum(counts.values())} departures that were not late, as a DataFrame")
                status.update("the streaming query starts ...")
            elif said["what"] == "stream batch":
                console.print(f"streaming query: batch {said['number']} done")
                if server.kills == 1:
                    server.kill_and_start("streaming query at work")
                status.update("the streaming query runs ...")
        assert process.stderr is not None
        errors = process.stderr.read()
        if process.wait() != 0:
            raise RuntimeError(f"Spark failed:\n{errors[-4000:]}")
    return counts


def collect(server: Server) -> dict[str, tuple[float, int]]:
    """Take the sums from their queue, and add them up."""
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    with ConnectionFactory(server.url).create_connection() as connection, connection.create_session() as session:
        connection.start()
        consumer = session.create_consumer(session.create_queue("demo.means"))
        while (message := consumer.receive(timeout=0.5)) is not None:
            part = json.loads(message.body)
            found[part["carrier"]][0] += part["sum"]
            found[part["carrier"]][1] += part["count"]
    return {carrier: (total, int(count)) for carrier, (total, count) in found.items()}


def show(delays: dict[str, tuple[float, int]]) -> None:
    """The table, and the picture."""
    means = sorted(((total / count, carrier, count) for carrier, (total, count) in delays.items()), reverse=True)
    table = Table(title="Mean departure delay by carrier, New York City 2013")
    for column in ("carrier", "departures", "mean delay (minutes)"):
        table.add_column(column, justify="left" if column == "carrier" else "right")
    for mean, carrier, count in means:
        table.add_row(carrier, f"{count:,}", f"{mean:.2f}")
    console.print(table)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    axes.barh([carrier for _, carrier, _ in reversed(means)], [mean for mean, _, _ in reversed(means)], color="#33658a")
    axes.set_xlabel("mean departure delay in minutes")
    axes.set_title("Departures from New York City in 2013, by carrier")
    figure.savefig(PICTURE, dpi=120)
    console.print(f"drawn in {PICTURE}")


def main() -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(prog="samples.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, help="only the first departures, so many; else all")
    started = time.monotonic()
    table = departures.read(parser.parse_args().rows)
    wanted = departures.expected(table)
    with tempfile.TemporaryDirectory() as directory:
        server = Server(f"{directory}/data")
        server.start()
        try:
            console.print(f"holdfast serves on {server.url}")
            move(server, table.num_rows)
            counts = run_spark(server, f"{directory}/checkpoint", max(1, table.num_rows // 4))
            delays = collect(server)
            with ConnectionFactory(server.url).create_connection() as connection:
                left = {queue.name: queue.messages for queue in connection.statistics().queues}
        finally:
            server.stop()
    show(delays)
    results = [
        check("departures that were not late, by carrier (Spark, batch)", counts, wanted.rest_by_carrier),
        check("late departures", wanted.rows - sum(counts.values()), wanted.late),
        check("sum and number of delays by carrier (Spark, streaming)", delays, wanted.delay_by_carrier),
        check("nothing is left in the queues", {name: count for name, count in left.items() if count}, {}),
        check("the server was killed twice", server.kills, 2),
    ]
    console.print(f"{time.monotonic() - started:.0f} seconds")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
