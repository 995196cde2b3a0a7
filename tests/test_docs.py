"""The documentation says what the code does."""

from __future__ import annotations

import inspect
import logging
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import Any

import attrs
import pytest

import sdk
from broker_adapter.engine.queues.statistics import BrokerStatistics, QueueStatistics
from broker_adapter.own_threads import flush_log
from sdk import ConnectionFactory, JMSException, MessageFormatException
from tests.interop.brokers.brokers import table

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["options", "requests", "api"])
def test_a_generated_page_is_what_the_code_generates(name: str) -> None:
    page = runpy.run_path(str(ROOT / "docs" / "generate.py"))[name]()
    assert (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") == page, "run: make docs"


def public_attributes(cls: type) -> set[str]:
    """What instances have that is neither a method nor a property, found without the documentation."""
    if issubclass(cls, Enum):
        return {each.name for each in cls}
    names = {
        name
        for base in cls.__mro__
        if base.__module__.split(".")[0] in ("sdk", "broker_adapter", "ack_modes")
        for name, member in vars(base).items()
        if not inspect.isroutine(member) and not isinstance(member, property | classmethod | staticmethod)
    }
    if issubclass(cls, JMSException):
        names |= set(vars(cls("reason")))
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("name", [name for name in sdk.__all__ if inspect.isclass(getattr(sdk, name))])
def test_every_public_attribute_is_on_the_page_of_the_names(name: str) -> None:
    """Under its class, or under one that it inherits from."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8").split("\n## spark_connector")[0]
    cls = getattr(sdk, name)
    listed: set[str] = set()
    for base in cls.__mro__:
        section = page.partition(f"\n- `{base.__name__}`")[2].partition("\n- `")[0]
        listed |= set(re.findall(r"`(\w+)`", section))
    assert public_attributes(cls) - listed == set()


def test_the_headers_of_a_message_are_in_the_table_of_the_jms_page() -> None:
    page = (ROOT / "docs" / "jms.md").read_text(encoding="utf-8")
    headers_table = page.partition("## Header fields")[2].partition("\n## ")[0]
    headers = public_attributes(sdk.Message) - {"body_kind"} | {"priority", "redelivered", "delivery_count"}
    assert {name for name in headers if f"| `{name}` |" not in headers_table} == set()


def test_every_operation_is_on_the_page_of_the_requests() -> None:
    page = (ROOT / "docs" / "requests.md").read_text(encoding="utf-8")
    connection = ConnectionFactory("embedded:").create_connection()
    with pytest.raises(MessageFormatException, match="the operations are") as raised:
        connection.request("no such operation", {})
    connection.close()
    operations = str(raised.value).split("the operations are ")[1].split(", ")
    assert [name for name in operations if f"`{name}`" not in page] == []
    assert len(operations) > 10


def test_every_figure_of_the_statistics_is_on_the_page_of_the_requests() -> None:
    page = " ".join((ROOT / "docs" / "requests.md").read_text(encoding="utf-8").split())
    of_broker, _, of_queue = page.partition("- `statistics`")[2].partition(" - `")[0].partition("Of each of these:")
    for cls, listed in ((BrokerStatistics, of_broker), (QueueStatistics, of_queue)):
        assert [each.name for each in attrs.fields(cls) if f"`{each.name}`" not in listed] == []


def test_the_table_of_brokers_is_what_the_interop_tests_expect() -> None:
    assert table() in (ROOT / "docs" / "brokers.md").read_text(encoding="utf-8")


def test_the_tests_that_the_tables_name_exist() -> None:
    pages = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("jms.md", "failover.md")]
    named = re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", "".join(pages))
    assert len(named) > 70
    for path, name in named:
        assert (ROOT / path).exists(), path
        if name:
            assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"


def test_links_between_the_pages_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def prose(page: str) -> list[str]:
    """The lines of a page that are neither of a table nor of a program or its output."""
    text = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    return [line for line in text.splitlines() if not line.startswith(("|", "    ")) and "](http" not in line]


def test_the_prose_of_the_pages_is_wrapped_at_120_characters() -> None:
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")):
        assert [line for line in prose(page.read_text(encoding="utf-8")) if len(line) > 120] == [], page.name


def test_the_tree_for_contributors_has_a_line_for_each_folder_of_the_packages() -> None:
    tree = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## The tree")[2].partition("\n## ")[0]
    packages = ("ack_modes", "broker_adapter", "holdfast", "sdk", "spark_connector")
    folders = {file.parent.relative_to(ROOT) for package in packages for file in (ROOT / package).rglob("*.py")}
    assert [folder for folder in folders if f"{folder.name}/`" not in tree] == []


def test_the_files_that_the_table_of_rules_names_exist() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table_of_rules = page.partition("## Where is the rule for")[2].partition("\n## ")[0]
    cells = [cell for row in table_of_rules.splitlines() for cell in row.split("|")[2:3] if "/" in cell]
    assert len(cells) >= 20
    for cell in cells:
        folder = ROOT
        for name in re.findall(r"`([\w/.]+)`", cell):
            path = ROOT / name if "/" in name else folder / name
            if not path.exists():
                path = ROOT / "broker_adapter" / name
            assert path.exists(), name
            folder = path if path.is_dir() else path.parent


def test_the_program_of_the_readme_runs() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    program = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[0]
    finished = subprocess.run(
        [sys.executable, "-c", program.replace("embedded:./data", "embedded:")],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "1 book\n"


def test_the_programs_of_the_page_of_regions_show_what_it_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "regions.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    durable = next(each for each in programs if "keep_alive=True" in each)
    definitions = programs[0].partition("with ConnectionFactory")[0]

    def lines(program: str, directory: str) -> list[str]:
        (tmp_path / directory).mkdir(exist_ok=True)
        finished = subprocess.run(
            [sys.executable, "-c", program.replace("time.sleep(1)", "time.sleep(4)")],  # the machine may be busy
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path / directory,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert finished.returncode == 0, finished.stderr
        return finished.stdout.splitlines()

    assert lines(programs[0], "first") == [
        *("IBM is there with {'price': 92.5}", "IBM is now {'price': 93.0}", "{'price': 93.0} ['IBM']"),
    ]
    counts = ["events that wait: -2", "events that wait: 1"]
    assert lines(definitions + durable, "fresh") == [*counts, "IBM is there with {'price': 94.0}"]
    assert lines(definitions + durable, "first") == [*counts, "IBM is now {'price': 94.0}"]
    transactions = next(each for each in programs if "rollback" in each)
    assert lines(transactions, "first") == re.findall(r"print\(.*\)  # (.*)", transactions)


def test_importing_the_sdk_loads_neither_spark_nor_asks_for_java() -> None:
    program = (
        "import sys, sdk; print([name for name in sys.modules if name.split('.')[0] in ('pyspark', 'py4j', 'pandas')])"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert finished.stdout == "[]\n"


def faq(heading: str) -> dict[str, Any]:
    """The names that the program below a heading of the page of questions defines."""
    page = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    found: dict[str, Any] = {}
    exec(page.partition(f"## {heading}")[2].partition("```python\n")[2].partition("```")[0], found)
    return found


@pytest.mark.parametrize("number", range(3))
def test_the_programs_of_the_page_of_asyncio_show_what_it_says(tmp_path: Path, number: int) -> None:
    page = (ROOT / "docs" / "asyncio.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(programs) == 3
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", programs[number]],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    expected = (
        ["one book"],
        sorted(f"done: task {each}" for each in range(20)),
        ["['0', '1', '4', '9']"],
    )
    assert sorted(finished.stdout.splitlines()) == expected[number]


def test_the_web_server_of_the_faq_sends_with_a_thread_for_each_request() -> None:
    with (
        ConnectionFactory("embedded:").create_connection() as connection,
        faq("Why does a producer raise")["web_server"](connection, 0) as server,
        ThreadPoolExecutor(4) as threads,  # such a server lets no more than five wait to be accepted
    ):
        threading.Thread(target=server.serve_forever).start()

        def post(number: int) -> int:
            request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}/", str(number).encode())
            with urllib.request.urlopen(request, timeout=300) as answer:
                return int(answer.status)

        assert set(threads.map(post, range(200))) == {202}
        server.shutdown()
        session = connection.create_session()
        browser = session.create_browser(session.create_queue("orders"))
        assert sorted(int(each.body) for each in browser) == list(range(200))


def test_the_loop_of_the_faq_ends_after_the_message_at_which_it_was_told_to_stop(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path}"
    done: list[str] = []

    def work(message: sdk.Message) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        done.append(str(message))

    with ConnectionFactory(url).create_connection() as connection:
        session = connection.create_session()
        session.create_producer(session.create_queue("orders")).send_all(["0", "1", "2"])
        before = signal.getsignal(signal.SIGTERM)
        try:
            faq("Does a program that is told to stop")["run"](url, work)
        finally:
            signal.signal(signal.SIGTERM, before)
        left = [str(each) for each in session.create_browser(session.create_queue("orders"))]
    assert (done, left) == (["0"], ["1", "2"])


def test_the_log_of_the_faq_is_sent_by_a_thread_of_its_own_without_what_holdfast_logs() -> None:
    threads: list[str] = []

    with ConnectionFactory("embedded:").create_connection() as connection:
        session = connection.create_session()
        producer = session.create_producer(session.create_queue("log"))

        class Sends(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                threads.append(threading.current_thread().name)
                producer.send(record.getMessage())

        before = list(logging.getLogger().handlers)
        listener = faq("Can a log handler")["send_log"](Sends())
        try:
            logging.getLogger("shop").warning("sold")
            logging.getLogger("holdfast.sdk").warning("the connection is lost")
            flush_log(60)
        finally:
            listener.stop()
            logging.getLogger().handlers[:] = before
        assert [str(each) for each in session.create_browser(session.create_queue("log"))] == ["sold"]
    assert threading.current_thread().name not in threads


def test_the_tests_of_the_page_about_testing_pass(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    for number, program in enumerate(re.findall(r"```python\n(.*?)```", page, re.DOTALL)):
        (tmp_path / f"test_{number}.py").write_text(program, encoding="utf-8")
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "holdfast.testing", "-q", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert "4 passed" in finished.stdout, finished.stdout + finished.stderr
