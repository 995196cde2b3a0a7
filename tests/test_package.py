"""What is built from this tree, and installed: contents, metadata, and that it runs by itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
import readme_renderer.markdown

ROOT = Path(__file__).parent.parent
PACKAGES = {"ack_modes", "broker_adapter", "holdfast", "sdk", "spark_connector"}
BUILD_SECONDS = 600


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """The output of a command, which has to succeed."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the project without what was built, installed or cached."""
    copy = tmp_path_factory.mktemp("package") / "source"
    passed_over = shutil.ignore_patterns(".*_cache", ".git", ".venv", ".interop", "*.egg-info", "__pycache__", "build")
    shutil.copytree(ROOT, copy, ignore=passed_over)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    """The wheel, by the command that its users' pip carries out."""
    into = source.parent / "wheels"
    run(
        *(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"),
        *("--disable-pip-version-check", "--wheel-dir", into, "."),
        cwd=source,
    )
    (found,) = into.iterdir()
    return found


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def test_a_wheel_holds_the_packages_their_types_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in names} == PACKAGES
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    ours = {
        str(file.relative_to(ROOT)) for package in PACKAGES for file in (ROOT / package).rglob("*.py") if file.is_file()
    }
    assert names - {name for name in names if name.endswith("py.typed")} == ours


def test_its_metadata_says_what_it_is_and_needs(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    assert metadata["Name"] == "holdfast"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Summary"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert set(metadata.get_all("Provides-Extra", [])) >= {"spark", "samples"}
    needed = {each.split(";")[0].strip() for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each}
    assert {"python-qpid-proton==0.40.0"} <= needed
    # What depends on inner workings of another library is bound to the versions that it was tested with.
    assert all("<" in each or "==" in each for each in needed if each.startswith(("lmdb", "scramp", "python-qpid")))


def test_the_readme_renders_where_packages_are_shown(wheel: Path) -> None:
    description = metadata_of(wheel).get_payload()
    assert isinstance(description, str)
    rendered = readme_renderer.markdown.render(description)
    assert rendered is not None
    assert "<h1" in rendered
    assert "<table" in rendered


def test_an_installed_wheel_works_without_the_tree(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    run(
        *(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--disable-pip-version-check"),
        *("--quiet", "--target", target, wheel),
        cwd=tmp_path,
    )
    program = (
        "import holdfast, sdk\n"
        "with holdfast.ConnectionFactory('embedded:').create_context() as context:\n"
        "    queue = context.create_queue('orders')\n"
        "    context.create_producer().send(queue, 'hello')\n"
        "    print(sdk.__file__, context.create_consumer(queue).receive_body(str, timeout=60))\n"
    )
    where, text = run(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=str(target)).split()
    assert Path(where) == target / "sdk" / "__init__.py"
    assert text == "hello"
    assert "serve" in run(target / "bin" / "holdfast", "--help", cwd=tmp_path, PYTHONPATH=str(target))


def test_a_source_distribution_contains_its_tests_and_builds_the_same_wheel(source: Path, wheel: Path) -> None:
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", "sources", cwd=source)
    (found,) = (source / "sources").iterdir()
    with tarfile.open(found) as archive:
        archive.extractall(source.parent / "unpacked", filter="data")
    (unpacked,) = (source.parent / "unpacked").iterdir()
    for file in ("tests/test_package.py", "tests/conftest.py", "docs/jms.md", "Makefile", "constraints.txt", "LICENSE"):
        assert (unpacked / file).is_file(), file
    tests = {str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("*") if "__pycache__" not in file.parts}
    assert {each for each in tests if not (unpacked / each).exists()} == set()
    into = source.parent / "again"
    run(
        *(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"),
        *("--disable-pip-version-check", "--wheel-dir", into, "."),
        cwd=unpacked,
    )
    (again,) = into.iterdir()
    with zipfile.ZipFile(again) as one, zipfile.ZipFile(wheel) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())
