"""The file of the configuration: what it may have, and where an error says that something is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker_adapter.config_file import MAX_FILE_BYTES, example, read_policies
from broker_adapter.destination import queue
from broker_adapter.engine.queues.policies import MAX_POLICIES, Policies
from broker_adapter.settings import EngineSettings, PolicySettings, options_of


def write(path: Path, text: str | bytes) -> Path:
    file = path / "holdfast.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_a_file_has_policies(tmp_path: Path) -> None:
    text = """
        # the shop
        [[policy]]
        match = "orders.>"
        max_deliveries = 3          # not ten
        redelivery_delay_seconds = 0
        dead_letter_queue = "orders.dead"

        [["policy"]]
        "match" = 'logs.*'
        max_messages = 1_000
        max_bytes = "none"
        when_full = "drop_oldest"
    """
    found = read_policies(write(tmp_path, text))
    assert [(each.match, dict(each.values)) for each in found] == [
        ("orders.>", {"max_deliveries": 3, "redelivery_delay_seconds": 0.0, "dead_letter_queue": "orders.dead"}),
        ("logs.*", {"max_messages": 1000, "max_bytes": None, "when_full": "drop_oldest"}),
    ]
    assert read_policies(write(tmp_path, "")) == []
    assert read_policies(write(tmp_path, 'policy = [{match = "a", max_messages = 3}]'))[0].values == {"max_messages": 3}


A = '[[policy]]\nmatch = "a"\n'


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (A + "max_messages = \n", 3, "Invalid value"),
        (A + 'when_full = "', 3, "Unterminated string"),
        ("a = 1\na = 2\n", 2, "Cannot overwrite a value"),
        (A + "\n\n[server]\n", 5, "unknown table 'server'; there is [[policy]]"),
        ("[policy]\nmatch = 'a'\n", 1, "written as [[policy]] tables"),
        ("policy = 5\n", 1, "written as [[policy]] tables"),
        (
            f"{A}max_messages = 5\n{A}\nmax_messages = 'x'\n",
            7,
            "max_messages='x' is not a number: a whole one, or none",
        ),
        (A + "max_bytes = 1\n'max_byte' = 5\n", 4, "unknown setting 'max_byte'; the most similar one is 'max_bytes'"),
        ("\n\n[[policy]]\nmax_messages = 5\n", 3, "match=None is not a pattern"),
        ("[[policy]]\nmax_messages = 5\nmatch = 'a>'\n", 3, "'>' stands for the rest of a name"),
        (f'{A}dead_letter_queue = "a\\u0000"\n', 3, "dead_letter_queue: destination name"),
        ("policy = [{match = 'a', max_messages = 0}]\n", 1, "max_messages=0 is below the least value, 1"),
        (b"[[policy]]\n# \xff\n", 2, "this is not UTF-8"),
        ("x = " + "[" * 20_000, 1, "nested too deeply"),
        (b" " * (MAX_FILE_BYTES + 1), 1, "larger than"),
        ("[[policy]]\n" * (MAX_POLICIES + 1), 1, f"there are {MAX_POLICIES + 1} policies; {MAX_POLICIES} is the limit"),
        (
            f"{A}max_messages = 5\n[[policy]]\nmatch = '*'\nmax_messages = 6\n{A}max_bytes = 4\nmax_messages = 7\n",
            10,
            "max_messages of policy 'a' contradicts that of 'a'",
        ),
        (
            "[[policy]]\nmatch = 'a.*'\ntime_to_live = 5\n[[policy]]\nmatch = 'a.>'\ntime_to_live = 5\n",
            6,
            "time_to_live of policy 'a.>' contradicts that of 'a.*': patterns of one length may match the same name",
        ),
    ],
)
def test_an_error_says_in_which_line_what_is_wrong(tmp_path: Path, text: str | bytes, line: int, reason: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ValueError, match=re.escape(str(file))) as refused:
        read_policies(file)
    assert str(refused.value).startswith(f"{file}:{line}: ")
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        read_policies(tmp_path / "none.toml")
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        read_policies(tmp_path)


def test_the_example_has_every_setting_with_its_default(tmp_path: Path) -> None:
    assert read_policies(write(tmp_path, example())) == []
    (made,) = read_policies(write(tmp_path, re.sub(r"(?m)^#(?! )", "", example())))
    assert made.match == "orders.>"
    assert list(made.values) == [each.name for each in options_of(PolicySettings)]
    settings = Policies(EngineSettings(), [made]).settings_of(queue("orders.eu"))
    assert settings == Policies(EngineSettings()).options
