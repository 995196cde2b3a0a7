"""Fetches what the interop tests need, each in a pinned version, into ``.interop`` beside the project's files.

``python -m tests.interop.install`` fetches everything and says what it could not; a test that needs something fetches
it by itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).parent
PLACE = Path(__file__).parents[2] / ".interop"

ARTEMIS = "2.44.0"
BROKER_J = "10.1.0"
RHEA = "3.0.5"
GO_AMQP = "1.7.0"
RABBITMQ_4 = "4.0.5"
#: The software that groups are upgraded from in a test: the oldest with this version of stores, and whole groups.
OLDER = "bd15e9c3"
_SECONDS = 600

#: The release of Debian with that RabbitMQ, and what of it a folder needs in which the packages are only unpacked.
_RELEASE = "trixie"
_PACKAGES = ("rabbitmq-server", "base-files", "coreutils", "dash", "findutils", "grep", "hostname", "mawk", "sed")


class CannotInstall(Exception):
    """Why something cannot be had."""


def java_client() -> str:
    """The class path of Apache Qpid JMS and of our programs that use it."""
    return java_programs(HERE / "java", "java")


def activemq() -> str:
    """The class path of Apache ActiveMQ Classic and of the program that starts it."""
    return java_programs(HERE / "activemq", "activemq")


def java_programs(folder: Path, name: str, pom: Path | None = None) -> str:
    """The class path of the Java programs of a folder, with the libraries that its ``pom.xml`` names.

    Args:
        folder: with the sources.
        name: of the folder in ``.interop`` for what is fetched and compiled.
        pom: another ``pom.xml`` than that of the folder.

    Raises:
        CannotInstall: Maven or ``javac`` is missing or fails; with what it said.
    """
    classes = PLACE / name / "classes"
    pom, sources = pom or folder / "pom.xml", sorted(folder.glob("*.java"))
    libraries = java_libraries(pom, name)
    if _is_older(classes, [*sources, pom]):
        shutil.rmtree(classes, ignore_errors=True)
        _run("javac", "-nowarn", "-d", str(classes), "-cp", f"{libraries}/*", *map(str, sources))
        classes.touch()
    return f"{classes}{os.pathsep}{libraries}/*"


def java_libraries(pom: Path, name: str) -> Path:
    """The folder with the libraries that a ``pom.xml`` names, and with those that they need.

    Args:
        pom: the file.
        name: of the folder in ``.interop`` for what is fetched.

    Raises:
        CannotInstall: Maven is missing or fails; with what it said.
    """
    libraries = PLACE / name / "lib"
    if _is_older(libraries, [pom]):
        shutil.rmtree(libraries, ignore_errors=True)
        _run(
            *("mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"),
            f"-DoutputDirectory={libraries}",
        )
        libraries.touch()
    return libraries


def rhea() -> Path:
    """The folder of ``node_modules`` with rhea."""
    place = PLACE / "node"
    if not (place / "node_modules" / "rhea" / "package.json").exists():
        place.mkdir(parents=True, exist_ok=True)
        _run("npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock", f"rhea@{RHEA}", cwd=place)
    return place


def go_amqp() -> Path:
    """The folder with go-amqp and the program ``tests``: its own integration tests, compiled."""
    place = PLACE / f"go-amqp-{GO_AMQP}"
    if not (place / "tests").exists():
        PLACE.mkdir(exist_ok=True)
        go = shutil.which("go") or "/usr/local/go/bin/go"
        module = f"github.com/Azure/go-amqp@v{GO_AMQP}"
        told = _output(go, "mod", "download", "-json", module, cwd=PLACE)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(json.loads(told)["Dir"], place)
        _run("chmod", "-R", "u+w", str(place))
        _run(go, "test", "-c", "-o", "tests", ".", cwd=place)
    return place


def artemis() -> Path:
    """The home of Apache ActiveMQ Artemis."""
    return _distribution("org.apache.activemq:apache-artemis", ARTEMIS, f"apache-artemis-{ARTEMIS}")


def broker_j() -> Path:
    """The home of Apache Qpid Broker-J."""
    return _distribution("org.apache.qpid:apache-qpid-broker-j", BROKER_J, f"qpid-broker/{BROKER_J}")


def rabbitmq() -> Path:
    """The folder with RabbitMQ's programs, of Debian's package."""
    found = Path("/usr/lib/rabbitmq/bin")
    if not (found / "rabbitmq-server").exists():
        apt = ("apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=120")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        if _run_quietly(*apt, "--no-install-recommends", "install", "rabbitmq-server", environment=environment):
            _run(*apt, "update", environment=environment)
            _run(*apt, "--no-install-recommends", "install", "rabbitmq-server", environment=environment)
    if not (found / "rabbitmq-server").exists():
        raise CannotInstall("Debian's package rabbitmq-server has no rabbitmq-server where it used to be")
    return found


def etcd() -> Path:
    """The program of etcd, of Debian's package, which needs nothing else: it is only unpacked."""
    place = PLACE / "etcd"
    program = place / "usr/bin/etcd"
    if not program.exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        if _run_quietly("apt-get", "-q", "download", "etcd-server", cwd=place):
            _run("apt-get", "-q", "update")
            _run("apt-get", "-q", "download", "etcd-server", cwd=place)
        for package in place.glob("etcd-server_*.deb"):
            _run("dpkg", "-x", str(package), str(place))
            package.unlink()
    if not program.exists():
        raise CannotInstall("Debian's package etcd-server has no etcd where it used to be")
    return program


def older() -> Path:
    """The folder with an earlier commit of this project."""
    place = PLACE / f"older-{OLDER}"
    if not place.exists():
        archive = PLACE / "older.tar"
        _run("git", "archive", "-o", str(archive), OLDER, "ack_modes", "broker_adapter", cwd=PLACE.parent)
        with tarfile.open(archive) as files:
            files.extractall(place, filter="data")
        archive.unlink()
    return place


def rabbitmq_4() -> Path:
    """The folder with RabbitMQ 4 and all that it needs: packages of a newer Debian, fetched by apt and unpacked there.

    Programs run in it by ``chroot``.
    """
    place = PLACE / f"rabbitmq-{RABBITMQ_4}"
    if (place / "usr/lib/rabbitmq/lib" / f"rabbitmq_server-{RABBITMQ_4}").exists():
        return place
    if os.geteuid():
        raise CannotInstall("only root can run what is unpacked in a folder of its own")
    apt, unpacked = PLACE / "apt", PLACE / "unpacked"
    shutil.rmtree(apt, ignore_errors=True)
    shutil.rmtree(unpacked, ignore_errors=True)
    (apt / "lists" / "partial").mkdir(parents=True)
    (apt / "archives" / "partial").mkdir(parents=True)
    (apt / "status").touch()
    (apt / "sources").write_text(f"deb {_debian()} {_RELEASE} main\n")
    settings = {
        "Dir::Etc::sourcelist": apt / "sources",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt,
        "Dir::Cache::archives": apt / "archives",
        "APT::Install-Recommends": "false",
    }
    command = ("apt-get", "-q", "-y", *(f"-o{name}={value}" for name, value in settings.items()))
    _run(*command, "update")
    _run(*command, "--download-only", "install", *_PACKAGES)
    unpacked.mkdir()
    for package in sorted((apt / "archives").glob("*.deb")):
        _run("dpkg", "-x", str(package), str(unpacked))
    (unpacked / "usr/bin/awk").symlink_to("mawk")  # as the package does where it is installed
    shutil.rmtree(apt)
    unpacked.rename(place)
    if not (place / "usr/lib/rabbitmq/lib" / f"rabbitmq_server-{RABBITMQ_4}").exists():
        raise CannotInstall(f"Debian's {_RELEASE} has another RabbitMQ than {RABBITMQ_4}")
    return place


def _debian() -> str:
    """Where apt gets Debian's packages from on this machine."""
    fields = "$(ORIGIN)|$(LABEL)|$(REPO_URI)"
    for _ in range(2):
        listed = _output("apt-get", "indextargets", "--format", fields, "Created-By: Packages")
        found = [line.rpartition("|")[2] for line in listed.splitlines() if line.startswith("Debian|Debian|")]
        if found:
            return found[0]
        _run("apt-get", "-q", "update")
    raise CannotInstall("apt has no source of Debian's packages")


def _distribution(artifact: str, version: str, folder: str) -> Path:
    home = PLACE / folder
    if not home.exists():
        name = artifact.partition(":")[2]
        _run(
            *("mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}:{version}:tar.gz:bin"),
            f"-DoutputDirectory={PLACE / 'archives'}",
        )
        with tarfile.open(PLACE / "archives" / f"{name}-{version}-bin.tar.gz") as archive:
            archive.extractall(PLACE, filter="data")
    return home


def _is_older(made: Path, sources: Sequence[Path]) -> bool:
    return not made.exists() or made.stat().st_mtime < max(source.stat().st_mtime for source in sources)


def _run(*command: str, cwd: Path | None = None, environment: dict[str, str] | None = None) -> None:
    PLACE.mkdir(exist_ok=True)
    failure = _run_quietly(*command, cwd=cwd, environment=environment)
    if failure:
        raise CannotInstall(f"{' '.join(command)[:200]}: {failure[-2000:]}")


def _output(*command: str, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotInstall(f"{' '.join(command)}: {error} {getattr(error, 'stderr', '')}") from error
    return done.stdout


def _run_quietly(*command: str, cwd: Path | None = None, environment: dict[str, str] | None = None) -> str:
    """Why it failed; nothing where it did not."""
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr + done.stdout).strip() or f"exit status {done.returncode}"


def main() -> int:
    """Fetch everything; returns how many things could not be had."""
    failures = 0
    things: tuple[Callable[[], object], ...] = (
        *(java_client, rhea, go_amqp),
        *(artemis, activemq, broker_j, rabbitmq, rabbitmq_4, etcd, older),
    )
    for number, thing in enumerate(things, start=1):
        print(f"[{number}/{len(things)}] {thing.__name__} ...", flush=True)
        try:
            thing()
        except CannotInstall as error:
            failures += 1
            print(f"! cannot be had: {error}", file=sys.stderr)
    return failures


if __name__ == "__main__":
    sys.exit(main())
