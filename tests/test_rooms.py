"""Where things live: each import contract is kept, and notices what it forbids; and no imports go round."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import tomllib
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import grimp
import pytest
from importlinter import configuration
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

ROOT = Path(__file__).parent.parent
CONTRACTS: dict[str, dict[str, Any]] = {
    contract["name"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
}
PACKAGES = ("ack_modes", "broker_adapter", "holdfast", "sdk", "spark_connector")
PURE = "Pure rooms touch no socket, thread, clock or file"
PROTOCOLS = "Rooms that speak a protocol touch no socket, thread, clock or file themselves"
NETWORK = "Only these files know sockets, event loops and TLS"
PROCESSES = "Only the command handles signals, and nothing starts processes"
PROTON = "Only amqp knows proton"
LMDB = "Only the store knows lmdb"
SDK = "The SDK knows the face of broker_adapter only"
SPARK = "spark_connector knows the face of broker_adapter, and hosts a server"
HOLDFAST = "holdfast knows the SDK and the version only"
WIRE = "The wire, its client and failover know no engine"


def source_of(module: str) -> Path:
    """The file of a module."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def opened_files(path: Path) -> list[int]:
    """The lines of a file that call ``open``, which needs no import."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [node.lineno for node in calls if isinstance(node.func, ast.Name) and node.func.id == "open"]


def test_no_pure_file_calls_open() -> None:
    named = [source_of(module) for module in CONTRACTS[PURE]["source_modules"]]
    files = [path for each in named for path in (each.parent.rglob("*.py") if each.name == "__init__.py" else [each])]
    assert len(files) > 100
    assert {str(path.relative_to(ROOT)): lines for path in files if (lines := opened_files(path))} == {}


def test_no_imports_go_round(graph: grimp.ImportGraph) -> None:
    graphlib.TopologicalSorter(
        {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
    ).prepare()


def planted() -> Iterator[tuple[str, str, str]]:
    """Imports that are forbidden: the file, what it would import, and the contract against it."""
    yield "ack_modes.outcome", "sdk.session", "Packages point one way"
    for package, importer, imported in (
        ("broker_adapter", "selectors.like", "engine.broker"),
        ("broker_adapter.engine", "records.layout", "broker"),
        ("broker_adapter.engine", "queues.queue", "rules.sends"),
        ("broker_adapter.amqp", "messages.values", "proton_engine.peer"),
        ("broker_adapter.server", "access.users", "listener"),
        ("sdk", "messages.message", "session"),
        ("spark_connector", "driver.engine_host", "spool.spool"),
    ):
        yield f"{package}.{importer}", f"{package}.{imported}", f"Inside {package}"
    for module in CONTRACTS[PURE]["forbidden_modules"]:
        yield "broker_adapter.engine.rules.sends", module, PURE
    yield "broker_adapter.engine.rules.sends", "broker_adapter.signals", PURE  # which reads the clock
    for module in CONTRACTS[PROTOCOLS]["forbidden_modules"]:
        yield "broker_adapter.server.protocol", module, PROTOCOLS
    for module in CONTRACTS[NETWORK]["forbidden_modules"]:
        for file in ("broker_adapter.engine.broker", "broker_adapter.in_process", "sdk.session", "holdfast"):
            yield file, module, NETWORK
    for module in ("signal", "subprocess", "multiprocessing"):
        for file in ("broker_adapter.engine.broker", "sdk.session", "spark_connector.writer"):
            yield file, module, PROCESSES
    for file in ("sdk.session", "spark_connector.writer", "broker_adapter.server.listener", "holdfast"):
        yield file, "lmdb", LMDB
    for module in ("proton", "cproton_ffi"):
        for file in (
            *("sdk.session", "spark_connector.writer", "holdfast", "broker_adapter.connect"),
            *("broker_adapter.failover.transport", "broker_adapter.server.listener", "broker_adapter.engine.broker"),
        ):
            yield file, module, PROTON
    yield (
        "broker_adapter.engine.broker",
        "broker_adapter.amqp.proton_engine.peer",
        "The embedded engine runs without proton",
    )
    yield "sdk.session", "pyspark", "Only spark_connector knows pyspark"
    yield "holdfast", "pyspark", "Only spark_connector knows pyspark"
    internals = ("engine.broker", "amqp.peer", "server.listener", "failover.transport", "in_process", "connect")
    for module in internals:
        yield "sdk.session", f"broker_adapter.{module}", SDK
        yield "spark_connector.writer", f"broker_adapter.{module}", SPARK
        yield "holdfast", f"broker_adapter.{module}", HOLDFAST
    for file in (
        "broker_adapter.amqp.proton_engine.peer",
        "broker_adapter.amqp.client.producers",
        "broker_adapter.failover.transport",
    ):
        yield file, "broker_adapter.engine.commands.messaging", WIRE
    yield "broker_adapter.server.protocol", "broker_adapter.amqp.client.brokers", "The server knows no client"


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    configuration.configure()
    return grimp.build_graph(*PACKAGES, include_external_packages=True)


def is_kept(name: str, graph: grimp.ImportGraph) -> bool:
    """Whether a contract holds, of these imports."""
    options = {key: str(value) if value is True else value for key, value in CONTRACTS[name].items()}
    session = {"root_packages": list(PACKAGES), "include_external_packages": True}
    kinds = {"forbidden": ForbiddenContract, "layers": LayersContract}
    return bool(kinds[CONTRACTS[name]["type"]](name, session, options).check(deepcopy(graph), verbose=False).kept)


@pytest.mark.parametrize(("importer", "imported", "contract"), list(planted()))
def test_a_contract_is_broken_by_an_import_that_it_forbids(
    graph: grimp.ImportGraph, importer: str, imported: str, contract: str
) -> None:
    assert importer in graph.modules
    changed = deepcopy(graph)
    changed.add_module(imported, is_squashed=not imported.startswith(PACKAGES))
    changed.add_import(importer=importer, imported=imported, line_number=1, line_contents=f"import {imported}")
    assert not is_kept(contract, changed)


def test_each_contract_is_kept_and_is_tried(graph: grimp.ImportGraph) -> None:
    assert {contract for _, _, contract in planted()} == set(CONTRACTS)
    assert [name for name in CONTRACTS if not is_kept(name, graph)] == []


def test_the_engine_names_no_condition_of_amqp() -> None:
    """An error gets its condition where it is sent: in ``amqp/conditions.py``."""
    files = (ROOT / "broker_adapter" / "engine").rglob("*.py")
    assert [path.name for path in files if '"amqp:' in path.read_text(encoding="utf-8")] == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="it is no clone")
def test_nothing_is_committed_that_git_is_told_to_ignore() -> None:
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == []


def quick_files() -> list[str]:
    """What ``make quick`` runs, with nothing set up for it."""
    done = subprocess.run(
        ["make", "--dry-run", "--old-file=.venv/.ready", "quick"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [word for word in done.stdout.split() if word.startswith("tests/")]


def test_the_quick_tests_exist_and_leave_out_no_room() -> None:
    quick = quick_files()
    assert [name for name in quick if not (ROOT / name).exists()] == []
    files = [
        path
        for name in quick
        for path in ((ROOT / name).rglob("test_*.py") if (ROOT / name).is_dir() else [ROOT / name])
    ]
    covered = {path.parent for path in files} | {ROOT / "tests" / path.stem.removeprefix("test_") for path in files}
    rooms = {path.parent.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert len(rooms) >= 15
    assert [str(room) for room in sorted(rooms) if ROOT / "tests" / room not in covered] == []
