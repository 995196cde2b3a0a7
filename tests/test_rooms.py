"""Where things live: what the import contracts say, and that they leave nothing out."""

from __future__ import annotations

import ast
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
PURITY = "Pure files touch no socket, thread, clock or file"


def source_of(module: str) -> Path:
    """The file of a module."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def opened_files(path: Path) -> list[int]:
    """The lines of a file that call ``open``, which needs no import."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return [node.lineno for node in calls if isinstance(node.func, ast.Name) and node.func.id == "open"]


def test_every_file_without_input_and_output_is_kept_so_by_the_contract(graph: grimp.ImportGraph) -> None:
    impure = set(CONTRACTS[PURITY]["forbidden_modules"])
    named = set(CONTRACTS[PURITY]["source_modules"])
    pure = {
        module
        for module in graph.modules
        if module.split(".")[0] in PACKAGES
        and not graph.find_children(module)
        and not {each.split(".")[0] for each in graph.find_upstream_modules(module)} & impure
    }
    pure = {module for module in pure if not opened_files(source_of(module))}
    inside = {module for module in pure if any(module.startswith(f"{each}.") for each in named)}
    assert sorted(pure - named - inside) == []


def test_every_file_of_the_sdk_and_of_spark_that_imports_nothing_impure_is_kept_so(graph: grimp.ImportGraph) -> None:
    """These import the face of ``broker_adapter``, so they cannot be pure with all that they load."""
    impure = set(CONTRACTS[DIRECTLY]["forbidden_modules"])
    clean = {
        module
        for module in graph.modules
        if module.split(".")[0] in ("sdk", "spark_connector")
        and not graph.find_children(module)
        and not graph.find_modules_directly_imported_by(module) & impure
        and not opened_files(source_of(module))
    }
    assert clean - set(CONTRACTS[PURITY]["source_modules"]) == set(CONTRACTS[DIRECTLY]["source_modules"])


def test_the_contracts_about_input_and_output_name_every_way_to_it() -> None:
    assert set(CONTRACTS[DIRECTLY]["forbidden_modules"]) == set(CONTRACTS[PURITY]["forbidden_modules"])
    for contract, modules in (
        (PURITY, {"_thread", "concurrent", "fcntl", "http", "mmap", "queue", "resource", "sched", "select"}),
        (PROTOCOLS, {"_thread", "concurrent", "fcntl", "http", "mmap", "queue", "resource", "sched", "select"}),
        (NETWORK, {"http", "select", "socketserver"}),
    ):
        assert modules - set(CONTRACTS[contract]["forbidden_modules"]) == set()


def test_no_pure_file_calls_open() -> None:
    named = [source_of(module) for module in CONTRACTS[PURITY]["source_modules"]]
    files = [path for each in named for path in (each.parent.rglob("*.py") if each.name == "__init__.py" else [each])]
    assert len(files) > 100
    assert {str(path.relative_to(ROOT)): lines for path in files if (lines := opened_files(path))} == {}


DIRECTLY = "Files of the SDK and of spark_connector that touch none of that themselves"
NETWORK = "Only these files know sockets, event loops and TLS"
PROCESSES = "Only the command handles signals, and nothing starts processes"
PROTON = "Only amqp knows proton"
LMDB = "Only the store knows lmdb"
SDK = "The SDK knows the face of broker_adapter only"
SPARK = "spark_connector knows the face of broker_adapter, and hosts a server"
HOLDFAST = "holdfast knows the SDK and the version only"
WIRE = "The wire, its client and failover know no engine"
PROTOCOLS = "Protocol files know proton but no socket"


def planted() -> Iterator[tuple[str, str, str]]:
    """Imports that are forbidden: the file, what it would import, and the contract against it."""
    yield "ack_modes.outcome", "sdk.session", "Packages point one way"
    for room, importer, imported in (
        ("broker_adapter", "clock", "settings"),
        ("broker_adapter.engine", "records", "broker"),
        ("broker_adapter.engine.clients", "states", "durable_clients"),
        ("broker_adapter.engine.regions", "interests", "region"),
        ("broker_adapter.amqp", "wire", "peer"),
        ("broker_adapter.amqp.proton_engine", "credit", "frame_input"),
        ("broker_adapter.amqp.security", "hashing", "tls_files"),
        ("broker_adapter.amqp.client", "drains", "protocol"),
        ("broker_adapter.server", "budget", "listener"),
        ("broker_adapter.server.cli", "terminal", "parser"),
        ("broker_adapter.failover", "links", "connector"),
        ("broker_adapter.selectors", "like", "language"),
        ("broker_adapter.urls", "qpid_url", "url"),
        ("sdk", "checks", "session"),
        ("ack_modes", "outcome", "mode"),
        ("spark_connector", "options", "writer"),
    ):
        yield f"{room}.{importer}", f"{room}.{imported}", f"Inside {room}"
    for module in CONTRACTS[PURITY]["forbidden_modules"]:
        yield "broker_adapter.engine.sends", module, PURITY
    yield "broker_adapter.engine.sends", "broker_adapter.signals", PURITY  # which reads the clock
    for file in ("sdk.lifecycle", "sdk.conversion", "spark_connector.offsets"):
        for module in ("threading", "os", "time"):
            yield file, module, DIRECTLY
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
    yield "broker_adapter.engine.broker", "broker_adapter.amqp.peer", "The embedded engine runs without proton"
    yield "sdk.session", "pyspark", "Only spark_connector knows pyspark"
    yield "holdfast", "pyspark", "Only spark_connector knows pyspark"
    internals = ("engine.broker", "amqp.peer", "server.listener", "failover.transport", "in_process", "connect")
    for module in internals:
        yield "sdk.session", f"broker_adapter.{module}", SDK
        yield "spark_connector.writer", f"broker_adapter.{module}", SPARK
        yield "holdfast", f"broker_adapter.{module}", HOLDFAST
    for file in (
        "broker_adapter.amqp.peer",
        "broker_adapter.amqp.client.producers",
        "broker_adapter.failover.transport",
    ):
        yield file, "broker_adapter.engine.commands", WIRE
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


def test_every_file_of_a_package_has_its_floor() -> None:
    inside = [contract for name, contract in CONTRACTS.items() if name.startswith("Inside ")]
    assert len(inside) == 16
    assert all(contract["exhaustive"] for contract in inside)


def python_files(*folders: str) -> Iterator[tuple[str, str]]:
    """The name and the text of each file in these folders."""
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def is_long_without_a_reason(text: str) -> bool:
    """Whether a file has more than 700 lines and no sentence in its docstring that begins with "Long because"."""
    return len(text.splitlines()) > 700 and "Long because" not in (ast.get_docstring(ast.parse(text)) or "")


def large_classes(text: str) -> list[str]:
    """The classes of a file that have 40 methods of their own or more."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and sum(isinstance(each, functions) for each in node.body) >= 40
    ]


def test_a_file_of_more_than_700_lines_says_why() -> None:
    files = dict(python_files(*PACKAGES, "samples", "benchmarks", "docs", "tests"))
    assert [name for name, text in files.items() if is_long_without_a_reason(text)] == []


def test_no_class_has_40_methods_of_its_own() -> None:
    found = {name: classes for name, text in python_files(*PACKAGES) if (classes := large_classes(text))}
    assert found == {}


def test_the_limits_of_files_and_classes_are_exact() -> None:
    assert not is_long_without_a_reason("x = 1\n" * 700)
    assert is_long_without_a_reason("x = 1\n" * 701)
    assert not is_long_without_a_reason('"""Words.\n\nLong because it is one table.\n"""\n' + "x = 1\n" * 701)
    methods = ["    def m(self): ...", "    async def n(self): ..."]
    assert large_classes("\n".join(["class Small:", *methods * 19, methods[0]])) == []
    assert large_classes("\n".join(["class Large:", *methods * 20])) == ["Large"]


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
