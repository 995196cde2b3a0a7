"""Starts the programs of ``benchmarks/java`` that use Apache Geode, which is fetched where it is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.programs import Program
from tests.interop import install

_JAVA = Path(__file__).parent / "java"
#: What the modules of Java have to open to Geode.
_OPENS = (
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/sun.nio.ch",
    "java.management/com.sun.jmx.remote.security",
)
#: Starts a program with arguments, properties of Java and a directory to work in; returns it with its first answer.
Start = Callable[..., tuple[Program, list[str]]]


@contextmanager
def java_programs() -> Iterator[Start]:
    """Yield what starts programs, which are killed in the end.

    Raises:
        CannotInstall: Geode cannot be fetched.
    """
    classes = install.java_programs(_JAVA, "geode")
    opens = [f"--add-opens={each}=ALL-UNNAMED" for each in _OPENS]
    with ExitStack() as stack:

        def start(
            program: str, *arguments: object, properties: Sequence[str] = (), directory: Path | None = None
        ) -> tuple[Program, list[str]]:
            settings = [f"-D{each}" for each in properties]
            command = ["java", "-Xmx2g", *opens, *settings, "-cp", classes, program, *map(str, arguments)]
            java = Program(program, command, directory)
            stack.callback(java.stop)
            return java, java.answer()

        yield start
