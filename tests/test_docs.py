"""The documentation says what the code does."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from broker_adapter.engine.statistics import BrokerStatistics, QueueStatistics
from sdk import ConnectionFactory, MessageFormatException
from tests.interop.brokers.brokers import table

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["options", "requests", "api"])
def test_a_generated_page_is_what_the_code_generates(name: str) -> None:
    page = runpy.run_path(str(ROOT / "docs" / "generate.py"))[name]()
    assert (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") == page, "run: make docs"


def test_every_operation_is_on_the_page_of_the_requests() -> None:
    page = (ROOT / "docs" / "requests.md").read_text(encoding="utf-8")
    connection = ConnectionFactory("embedded:").create_connection()
    with pytest.raises(MessageFormatException, match="the operations are") as raised:
        connection.request("no such operation", {})
    connection.close()
    operations = str(raised.value).split("the operations are ")[1].split(", ")
    assert [name for name in operations if f"- `{name}` " not in page] == []
    assert len(operations) > 10


def test_every_figure_of_the_statistics_is_on_the_page_of_the_requests() -> None:
    page = (ROOT / "docs" / "requests.md").read_text(encoding="utf-8")
    for cls in (BrokerStatistics, QueueStatistics):
        for each in attrs.fields(cls):
            assert f"`{each.name}`" in page, each.name


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


def test_importing_the_sdk_loads_neither_spark_nor_asks_for_java() -> None:
    program = (
        "import sys, sdk; print([name for name in sys.modules if name.split('.')[0] in ('pyspark', 'py4j', 'pandas')])"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert finished.stdout == "[]\n"
