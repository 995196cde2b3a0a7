"""Which lines of each source file its own tests execute: ``make coverage``.

A source file has a test file of its own, at the same place below ``tests``, or a contract: tests that state what it has
to do and live elsewhere, named in ``CONTRACTS``.  Only what these execute counts, not what some other test happens to
pass through.  A file below 90 % is named, and the command ends with status 1.

The command ``holdfast`` is tested in processes of its own: what these execute counts for the test that has started
them, unless they are killed.  What other processes execute (a server that some other test starts, the workers of Spark)
does not count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("ack_modes", "broker_adapter", "holdfast", "sdk", "spark_connector")
LEAST_PERCENT = 90

_E = "broker_adapter/engine"


def _engine(*tests: str) -> tuple[str, ...]:
    return tuple(f"tests/{_E}/test_{each}.py" for each in tests)


_S = "broker_adapter/server"


def _server(*tests: str) -> tuple[str, ...]:
    return tuple(f"tests/{_S}/test_{each}.py" for each in tests)


#: Order, redelivery, groups and credit of one queue.
_ONE_QUEUE = _engine("histories", "selective_histories", "queue_state", "dispatch", "endings", "backoff")
#: What every transport must do.
_PORT = ("tests/contracts",)
_SESSION = (
    *(f"tests/sdk/test_{each}.py" for each in ("end_to_end", "policies", "session_links", "session_lost", "dropped")),
    "tests/sdk/threads",
)
#: Checks and repairs of damaged stores.
_REPAIRS = _engine("maintenance", "damaged_records", "damaged_pages", "damaged_roots", "memory_of_repairs")
#: Consumers of a server.
_CONSUMERS = _server("consumers", "credit", "link_ends", "conversions", "undecodable_messages", "messages_in_hand")
_PEERS = ("tests/broker_adapter/amqp/proton_engine", "tests/broker_adapter/amqp/test_peer.py")
#: Source files or folders whose tests are elsewhere, with these tests (files, or folders with all that is below).
CONTRACTS: dict[str, tuple[str, ...]] = {
    # Every mode, every event.
    "ack_modes": ("tests/ack_modes/test_policies.py",),
    "holdfast/__init__.py": ("tests/test_holdfast.py",),
    # The rules of the engine: a rule often shows in a file, and is decided in several.
    f"{_E}/queue_state.py": (*_ONE_QUEUE, *_engine("suspects", "losses", "background")),
    f"{_E}/queue_entries.py": (*_ONE_QUEUE, *_engine("entry_reads", "loading", "background", "background_commands")),
    f"{_E}/dispatch.py": _ONE_QUEUE,
    f"{_E}/endings.py": _ONE_QUEUE,
    f"{_E}/deliveries.py": _engine("endings", "losses", "suspects", "no_room_for_quarantine", "transactions"),
    f"{_E}/consumers.py": _engine("histories", "selective_histories", "browsing"),
    f"{_E}/connections.py": _engine("losses"),
    f"{_E}/directory.py": _engine("attachments", "background", "connections", "destinations", "intake", "transactions"),
    f"{_E}/queue_removal.py": _engine("attachments", "background", "destinations", "connections", "full_subscriptions"),
    f"{_E}/background_commands.py": _engine("background", "operations", "two_at_once"),
    f"{_E}/admission.py": _engine("limits", "blocked_sends", "resumption", "staged_batches", "full_subscriptions"),
    f"{_E}/wait_queues.py": _engine("blocked_sends", "resumption"),
    f"{_E}/resumption.py": _engine("blocked_sends", "transactions", "limits"),
    f"{_E}/sends.py": _engine("attachments", "blocked_sends", "identities", "intake", "matching"),
    f"{_E}/transactions.py": _engine("blocked_sends", "matching", "resumption", "admission"),
    f"{_E}/broker_state.py": _engine(
        "histories", "selective_histories", "administered_histories", "entry_reads", "loading", "transactions"
    ),
    f"{_E}/effects.py": _engine("broker_state", "message_reads"),
    f"{_E}/command_inputs.py": _engine("losses"),
    f"{_E}/operation_steps.py": _engine("strange_values"),
    f"{_E}/reader.py": (*_engine("region_snapshots", "operations"), "tests/contracts/test_transport_regions.py"),
    # Regions and durable clients: what one does shows in all of them.
    **dict.fromkeys(
        (
            *(f"{_E}/event_{each}.py" for each in ("changes", "commands", "reads", "state")),
            *(f"{_E}/regions/{each}.py" for each in ("event_log", "region")),
            *(f"{_E}/clients/{each}.py" for each in ("client_interests", "durable_clients")),
        ),
        _engine("event_changes", "event_histories", "check_events", "own_audiences"),
    ),
    f"{_E}/client_operations.py": ("tests/contracts/test_transport_clients.py",),
    f"{_E}/event_descriptions.py": (*_engine("client_queues"), "tests/contracts/test_transport_clients.py"),
    f"{_E}/clients/client_queue.py": _engine("event_histories", "client_queues"),
    f"{_E}/clients/durable_client.py": _engine("event_histories", "client_queues"),
    f"{_E}/regions/stored_log.py": _engine("client_queues", "key_lengths"),
    f"{_E}/new_message.py": _engine("sends", "event_changes"),
    f"{_E}/region_operations.py": (
        *_engine("region_operations", "strange_values"),
        "tests/contracts/test_transport_regions.py",
    ),
    **dict.fromkeys(
        [f"sdk/region_{each}.py" for each in ("events", "listener", "state")],
        ("tests/sdk/test_region.py", "tests/sdk/test_region_query.py", "tests/faults/test_regions.py"),
    ),
    "sdk/region.py": (
        *(f"tests/sdk/test_region_{each}.py" for each in ("clients", "query", "events")),
        "tests/faults/test_regions.py",
    ),
    f"{_E}/failures.py": _engine("destinations", "limits", "neighbours", "transactions"),
    f"{_E}/decision_time.py": _engine("clocks"),
    f"{_E}/selection.py": _engine("matching"),
    "spark_connector/data_source.py": ("tests/spark_connector/test_batch.py",),
    **dict.fromkeys(
        [f"spark_connector/region_{each}.py" for each in ("reader", "stream", "writer")],
        ("tests/spark_connector/test_region_io.py",),
    ),
    "spark_connector/renewal.py": ("tests/spark_connector/test_writer.py",),
    "spark_connector/engine_listener.py": ("tests/spark_connector/test_engine_host.py",),
    "spark_connector/spool_source.py": ("tests/spark_connector/test_spool.py",),
    # One end of a connection: what the other end sees of it.
    f"{_S}/client_connection.py": _server("places", "close_half_way", "listener"),
    f"{_S}/consumers.py": (
        *_CONSUMERS,
        *_server("unfinished_messages", "windows", "on_the_way", "disposition_ranges", "strange_messages"),
    ),
    f"{_S}/requests.py": _server("request_workers", "permissions"),
    f"{_S}/set_aside.py": _server("undecodable_messages"),
    f"{_S}/password_checks.py": ("tests/broker_adapter/test_connect.py",),
    f"{_S}/protocol.py": (*_CONSUMERS, *_server("coordinator", "producers")),
    # The command, run as such.
    "broker_adapter/server/cli": ("tests/broker_adapter/server/cli",),
    # The port, line by line, over every transport.
    "broker_adapter/transport.py": _PORT,
    "broker_adapter/in_process.py": _PORT,
    "broker_adapter/refusals.py": _PORT,
    "broker_adapter/amqp/client": _PORT,
    # What failover asks of a transport, too.
    "broker_adapter/amqp/client/transport.py": tuple(
        f"tests/broker_adapter/failover/test_{each}.py" for each in ("commits", "connector", "reattach", "transport")
    ),
    # The connection's protocol: what its transport asks of it.
    "broker_adapter/amqp/client/protocol.py": ("tests/broker_adapter/amqp/client/test_transport.py",),
    # What is stored and sent, message by message.
    "broker_adapter/packing.py": (
        "tests/broker_adapter/test_envelope.py",
        "tests/broker_adapter/amqp/test_management.py",
        "tests/broker_adapter/amqp/test_values.py",
        "tests/broker_adapter/server/test_requests.py",
    ),
    "broker_adapter/amqp/sections.py": (
        "tests/broker_adapter/amqp/test_amqp_message.py",
        "tests/broker_adapter/amqp/test_stored_message.py",
        "tests/broker_adapter/server/test_strange_messages.py",
    ),
    "broker_adapter/amqp/jms_mapping.py": (
        "tests/broker_adapter/amqp/test_amqp_message.py",
        "tests/broker_adapter/amqp/test_messages_with_proton.py",
        "tests/broker_adapter/amqp/test_quick_reader.py",
        "tests/broker_adapter/server/test_strange_messages.py",
    ),
    "broker_adapter/amqp/amqp_message.py": (
        "tests/broker_adapter/amqp/test_sections.py",
        "tests/broker_adapter/amqp/test_payloads.py",
        "tests/broker_adapter/server/test_strange_messages.py",
    ),
    # Two peers on a pretend wire.
    "broker_adapter/amqp/proton_engine": _PEERS,
    "broker_adapter/amqp/proton_memory.py": _PEERS,
    "broker_adapter/amqp/public_engine.py": _PEERS,
    "broker_adapter/amqp/wire.py": _PEERS,
    # Both ends of a login.
    "broker_adapter/amqp/sasl.py": tuple(
        f"tests/broker_adapter/amqp/test_{each}.py" for each in ("sasl_challenges", "sasl_bytes")
    ),
    # What an application gets of a session: each mode's promise, its options, its threads, and a lost connection.
    "sdk/session.py": _SESSION,
    "sdk/session_state.py": _SESSION,
    "sdk/session_thread.py": _SESSION,
    "sdk/endings.py": _SESSION,
    "sdk/several.py": ("tests/sdk/test_receive_many.py",),
    "sdk/producer.py": (
        *_SESSION,
        *(f"tests/sdk/test_{each}.py" for each in ("send_all", "closed_while_sending", "endings")),
    ),
    "sdk/acknowledgements.py": ("tests/sdk/test_repeated_acknowledgements.py",),
    "sdk/consumer.py": (*_SESSION, "tests/sdk/test_prefetch.py", "tests/sdk/test_closed_by_handlers.py"),
    "sdk/browser.py": (*_SESSION, "tests/sdk/test_delivery_filter.py", "tests/contracts/test_selectors.py"),
    "sdk/connection.py": (
        *_SESSION,
        *(f"tests/sdk/test_{each}.py" for each in ("checks", "clean_ends", "region_clients")),
    ),
    "sdk/connection_factory.py": ("tests/sdk/test_checks.py", "tests/sdk/test_context.py"),
    "sdk/typed_values.py": ("tests/sdk/test_message.py", "tests/sdk/test_message_types.py"),
    # One contract over both stores; what older versions wrote; damaged stores.
    f"{_E}/background.py": _engine("schedule_lines", "event_changes", "client_queues"),
    f"{_E}/lmdb_reads.py": _engine("key_lengths"),
    f"{_E}/lmdb_store.py": _engine("store"),
    f"{_E}/memory_store.py": _engine("store"),
    f"{_E}/store_versions.py": _engine("old_stores"),
    f"{_E}/records.py": _engine("lmdb_store", "store", "old_stores", "schedule_lines", "key_lengths"),
    f"{_E}/lmdb_writes.py": _engine("lmdb_store", "store", "lmdb_room", "full_disk"),
    f"{_E}/check.py": _REPAIRS,
    f"{_E}/check_places.py": _REPAIRS,
    f"{_E}/maintenance.py": _REPAIRS,
    f"{_E}/pages.py": _REPAIRS,
    f"{_E}/record_kinds.py": _REPAIRS,
    f"{_E}/salvage.py": _REPAIRS,
    # The driver, and positions over its restarts.
    f"{_E}/broker.py": _engine("engine_failures"),
    f"{_E}/runs.py": _engine("noted_starts", "run_histories"),
    f"{_E}/run_numbers.py": _engine("noted_starts"),
}


#: The tests whose processes count, and the variable of the environment with the settings of coverage for these.
_OF_THE_COMMAND = "tests/broker_adapter/server/cli/"
_SETTINGS_OF_PROCESSES = "HOLDFAST_COVERAGE_OF_PROCESSES"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Have the processes measured that a test of the command starts; this file is a plugin of pytest for that."""
    if not item.nodeid.startswith(_OF_THE_COMMAND):
        return (yield)
    os.environ["COVERAGE_PROCESS_START"] = os.environ[_SETTINGS_OF_PROCESSES]  # which Python reads as it starts
    try:
        return (yield)
    finally:
        del os.environ["COVERAGE_PROCESS_START"]


def tests_of(source: str) -> tuple[str, ...]:
    """The test file of a source file, and the contracts of it and of the folders that it is in.

    Args:
        source: a path from the root of the project, such as ``sdk/session.py``.
    """
    path = Path(source)
    own = Path("tests", path.parent, f"test_{path.stem.lstrip('_')}.py")
    named = [each for place in (path, *path.parents) for each in CONTRACTS.get(place.as_posix(), ())]
    return (own.as_posix(), *named)


def covered_percent(statements: Iterable[int], executed: Iterable[int]) -> float:
    """How many of these lines were executed, in percent; 100 where there are none."""
    all_of_them = set(statements)
    return 100.0 if not all_of_them else 100 * len(all_of_them & set(executed)) / len(all_of_them)


def sources() -> list[str]:
    """All source files, as paths from the root."""
    return sorted(file.relative_to(ROOT).as_posix() for package in PACKAGES for file in (ROOT / package).rglob("*.py"))


def _executed(data: coverage.CoverageData, source: str) -> set[int]:
    """The lines of a file that its own tests execute, and those that run as it is imported."""
    data.set_query_contexts(["^$", *(f"^{each}(/|::)" for each in tests_of(source))])
    return set(data.lines(str(ROOT / source)) or ())


def main() -> int:
    """Run the tests, and print a line for each file."""
    parser = argparse.ArgumentParser(prog="coverage_by_file", description=__doc__.splitlines()[0])
    parser.add_argument("tests", nargs="*", default=["tests"], help="what is run; default: all tests")
    parser.add_argument("--workers", default="2", help="processes that run the tests")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        settings = Path(directory, "coveragerc")
        settings.write_text(f"[run]\ndata_file = {directory}/coverage\n", encoding="utf-8")
        of_processes = Path(directory, "of_processes")
        of_processes.write_text(
            f"[run]\ndata_file = {directory}/process\nparallel = true\nsigterm = true\n"
            f"source_pkgs = {','.join(PACKAGES)}\ncontext = ${{PYTEST_CURRENT_TEST-}}\n"
            "disable_warnings = module-not-imported,module-not-measured,no-data-collected\n",
            encoding="utf-8",
        )
        status = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-n", options.workers, "--dist", "loadfile", "-p", __spec__.name),
                *(f"--cov={package}" for package in PACKAGES),
                *(f"--cov-config={settings}", "--cov-context=test", "--cov-report=", *options.tests),
            ],
            cwd=ROOT,
            check=False,
            env={**os.environ, _SETTINGS_OF_PROCESSES: str(of_processes)},
        ).returncode
        data = coverage.CoverageData(f"{directory}/coverage")
        data.read()
        for file in Path(directory).glob("process.*"):
            found = coverage.CoverageData(str(file))
            found.read()
            data.update(found)
        analysis = coverage.Coverage(data_file=None)
        below = 0
        for source in sources():
            statements = analysis.analysis2(str(ROOT / source))[1]
            percent = covered_percent(statements, _executed(data, source))
            data.set_query_contexts(None)
            by_all = covered_percent(statements, data.lines(str(ROOT / source)) or ())
            below += percent < LEAST_PERCENT
            mark = "  <--" if percent < LEAST_PERCENT else ""
            print(f"{source:55} {len(statements):5} lines {percent:6.1f} % {by_all:6.1f} % by all tests{mark}")
    print(f"{below} files below {LEAST_PERCENT} %" if below else f"every file at {LEAST_PERCENT} % or above")
    return 1 if status or below else 0


if __name__ == "__main__":
    sys.exit(main())
