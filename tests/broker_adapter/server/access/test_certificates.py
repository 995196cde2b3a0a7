"""The TLS certificates of a server: read again when they change, and a warning before one ends."""

from __future__ import annotations

import logging
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broker_adapter.server.access.certificates import CHECK_SECONDS, DAY_SECONDS, Certificates


def make(path: Path, name: str, days: int = 90, *, subject: str = "/O=test/CN={}", more: str = "") -> None:
    """Make a certificate and its key, ``server.crt`` and ``server.key``, in place of those that are there."""
    command = f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days {days} {more} -subj"
    command = f"{command} {subject.format(name)}"
    files = ["-keyout", str(path / "server.key"), "-out", str(path / "server.crt")]
    subprocess.run(["openssl", *command.split(), *files], check=True, capture_output=True)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    make(tmp_path, "first")
    return tmp_path


def certificates(path: Path, client_ca: Path | None = None) -> Certificates:
    return Certificates(
        str(path / "server.crt"), str(path / "server.key"), None if client_ca is None else str(client_ca)
    )


def records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What the certificates have logged, and nothing else."""
    return [each for each in caplog.records if each.name.endswith("access.certificates")]


def test_files_that_did_not_change_are_not_read_again(made: Path) -> None:
    read = certificates(made)
    context = read.context
    read.check(0.0)
    read.check(CHECK_SECONDS)
    assert read.context is context


def test_files_that_changed_are_read_again_at_the_next_check(made: Path, caplog: pytest.LogCaptureFixture) -> None:
    read = certificates(made)
    first = read.context
    read.check(0.0)
    make(made, "second")
    read.check(CHECK_SECONDS - 1)
    assert read.context is first, "the files are not examined each second"
    with caplog.at_level(logging.INFO):
        read.check(CHECK_SECONDS)
    assert read.context is not first
    assert f"certificates were read again: {made / 'server.crt'}" in caplog.text


def test_files_are_read_again_on_demand(made: Path) -> None:
    read = certificates(made)
    first = read.context
    make(made, "second")
    read.reload()
    assert read.context is not first


@pytest.mark.parametrize("broken", ["server.crt", "server.key", "ca.crt"])
@pytest.mark.parametrize("how", ["garbage", "missing"])
def test_a_broken_file_changes_nothing_and_is_logged_once(
    made: Path, broken: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copy(made / "server.crt", made / "ca.crt")
    read = certificates(made, made / "ca.crt")
    context = read.context
    if how == "garbage":
        (made / broken).write_text("garbage")
    else:
        (made / broken).unlink()
    for check in range(3):
        read.check(check * CHECK_SECONDS)
    assert read.context is context
    assert caplog.text.count("the certificates stay as they were: ") == 1
    assert str(made / broken) in caplog.text
    read.reload()
    assert caplog.text.count("the certificates stay as they were: ") == 2, "who asks gets an answer"


def test_a_certificate_whose_key_is_not_there_yet_is_read_when_it_is(made: Path) -> None:
    read = certificates(made)
    first = read.context
    key = (made / "server.key").read_bytes()
    make(made, "second")
    new_key = (made / "server.key").read_bytes()
    (made / "server.key").write_bytes(key)
    read.check(0.0)
    assert read.context is first
    (made / "server.key").write_bytes(new_key)
    read.check(CHECK_SECONDS)
    assert read.context is not first


def encrypt_key(path: Path) -> None:
    """Give the key a pass phrase."""
    command = f"openssl ec -aes256 -passout pass:abc -in {path / 'server.key'} -out {path / 'encrypted'}"
    subprocess.run(command.split(), check=True, capture_output=True)
    (path / "encrypted").replace(path / "server.key")


def test_a_key_with_a_pass_phrase_is_refused_and_not_asked_for_at_the_terminal(
    made: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read = certificates(made)
    context = read.context
    encrypt_key(made)
    with pytest.raises(ValueError, match=r"the key has a pass phrase.*openssl pkey"):
        certificates(made)
    read.reload()
    assert read.context is context
    assert "the certificates stay as they were: " in caplog.text
    assert "the key has a pass phrase" in caplog.text


def test_a_certificate_that_was_read_again_and_ends_soon_is_warned_of_at_once(
    made: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read = certificates(made)
    read.check(0.0)
    make(made, "second", 2)
    read.reload()
    read.check(1.0)
    assert "Name: second," in caplog.text


@pytest.mark.parametrize(("days", "warns"), [(15, False), (13, True), (1, True)])
def test_a_warning_is_logged_daily_from_14_days_before_a_certificate_ends(
    tmp_path: Path, days: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    began = datetime.now(UTC)
    make(tmp_path, "old", days)
    ends = {f"{each + timedelta(days):%F}" for each in (began, datetime.now(UTC))}  # it may be midnight
    read = certificates(tmp_path)
    for elapsed, times in ((0.0, 1), (DAY_SECONDS - CHECK_SECONDS, 1), (DAY_SECONDS, 2), (2 * DAY_SECONDS - 1, 2)):
        read.check(elapsed)
        found = [each.getMessage() for each in records(caplog)]
        assert len(found) == (times if warns else 0)
    for each in found:
        whose = "'Common Name: old, Organization: test'"
        start, _, end = each.partition(" ends on ")
        assert start == f"! the certificate {whose} in {tmp_path / 'server.crt'}"
        assert end.split()[0] in ends


def test_each_certificate_of_a_file_is_warned_of(made: Path, caplog: pytest.LogCaptureFixture) -> None:
    authorities = b""
    for name, days in (("one", 2), ("two", 90), ("three", 3)):
        (made / name).mkdir()
        make(made / name, name, days)
        authorities += b"a comment\n" + (made / name / "server.crt").read_bytes()
    (made / "ca.crt").write_bytes(authorities)
    certificates(made, made / "ca.crt").check(0.0)
    assert [each for each in ("first", "one", "two", "three") if f"Name: {each}," in caplog.text] == ["one", "three"]


def test_a_renewed_certificate_ends_the_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make(tmp_path, "old", 2)
    read = certificates(tmp_path)
    read.check(0.0)
    assert len(records(caplog)) == 1
    make(tmp_path, "new", 90)
    read.check(DAY_SECONDS)
    assert len(records(caplog)) == 1
    make(tmp_path, "newer", 2)
    read.check(DAY_SECONDS + CHECK_SECONDS)
    assert len(records(caplog)) == 2, "a new one that ends soon is told at once"


def test_a_certificate_without_a_subject_is_named_by_its_domains(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path, "", 2, subject="/", more="-addext subjectAltName=DNS:mq.example.org,DNS:mq2.example.org")
    certificates(tmp_path).check(0.0)
    assert "the certificate 'mq.example.org, mq2.example.org' in " in caplog.text


def test_what_is_no_certificate_for_its_end_is_passed_over(made: Path, caplog: pytest.LogCaptureFixture) -> None:
    read = certificates(made)
    (made / "server.crt").write_text("-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n")
    read.check(0.0)
    assert [each.levelname for each in records(caplog)] == ["ERROR"], "that it cannot be used"
