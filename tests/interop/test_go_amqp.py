"""go-amqp, Azure's AMQP library for Go, against our server: its own integration tests."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from tests.interop import install
from tests.interop.conftest import installed
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TESTS = (
    *("TestConcurrentSessionsOpenClose", "TestDialWithCancelledContext", "TestDrainingLink", "TestIntegrationClose"),
    *("TestIntegrationLinkName", "TestIntegrationReceiverModeSecond", "TestIntegrationRoundTrip"),
    *("TestIntegrationRoundTrip_Buffered", "TestIntegrationSessionHandleMax", "TestMultipleSendersSharedSession"),
    *("TestMultipleSessionsOpenClose", "TestNewReceiverWithCancelledContext", "TestNewSessionWithCancelledContext"),
    *("TestReceiverModeFirst", "TestReceivingLotsOfSettledMessages", "TestSenderExactlyOnce", "TestSenderNullValue"),
)


@pytest.fixture(scope="module")
def output(server: ServerProcess) -> str:
    """What the tests print."""
    place = installed(install.go_amqp)
    command = [str(place / "tests"), "-test.v", "-test.timeout", "250s", "-test.run", f"^({'|'.join(TESTS)})$"]
    environment = {**os.environ, "AMQP_BROKER_ADDR": server.url}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=280, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", TESTS)
def test_go_amqp_passes_its_own_tests(output: str, name: str) -> None:
    assert re.findall(rf"^--- (\w+): {name} ", output, re.MULTILINE) == ["PASS"], output[-3000:]
