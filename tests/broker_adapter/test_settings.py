"""Settings: their limits, and their forms as text."""

from __future__ import annotations

import pytest

from broker_adapter.settings import (
    AmqpSettings,
    ClientSettings,
    EmbeddedSettings,
    EngineSettings,
    ServerSettings,
    options_of,
    parse_option,
    settings_from,
)

CLASSES = [ClientSettings, EmbeddedSettings, AmqpSettings, EngineSettings, ServerSettings]


@pytest.mark.parametrize("cls", CLASSES)
def test_every_option_has_a_unit_or_none_a_text_and_a_default_within_its_limits(cls: type) -> None:
    for info in options_of(cls):
        assert info.text
        if isinstance(info.default, int | float) and not isinstance(info.default, bool):
            assert info.name.split("_")[-1] in (
                "messages",
                "bytes",
                "seconds",
                "deliveries",
                "redeliveries",
                "sends",
                "destinations",
                "producers",
                "entries",
                "connections",
                "clients",
                "interests",
                "events",
                "sessions",
                "links",
                "entries",
                "multiplier",
                "site",
                "redundancy",
            ), info.name
            assert info.least is None or info.default >= info.least
            assert info.most is None or info.default <= info.most


@pytest.mark.parametrize("cls", CLASSES)
def test_every_option_takes_its_limits_and_nothing_beyond(cls: type) -> None:
    for info in options_of(cls):
        for limit, beyond in ((info.least, -1), (info.most, 1)):
            if limit is None:
                continue
            assert getattr(cls(**{info.name: limit}), info.name) == limit
            with pytest.raises(ValueError, match=info.name):
                cls(**{info.name: limit + beyond})


@pytest.mark.parametrize("cls", CLASSES)
def test_defaults_survive_being_written_and_read(cls: type) -> None:
    values = {info.name: "none" if info.default is None else str(info.default) for info in options_of(cls)}
    assert settings_from(cls, values) == cls()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_queue_messages", "none", None),
        ("max_queue_messages", "", None),
        ("max_queue_messages", "5", 5),
        ("dead_letter_queue", "DEAD", "DEAD"),
        ("blocked_send_timeout_seconds", "0.5", 0.5),
    ],
)
def test_texts_become_values(name: str, text: str, value: object) -> None:
    (info,) = [info for info in options_of(EngineSettings) if info.name == name]
    assert parse_option(info, text) == value


@pytest.mark.parametrize(("name", "text"), [("max_message_bytes", ""), ("max_message_bytes", "1.5")])
def test_texts_that_do_not_fit_are_refused(name: str, text: str) -> None:
    (info,) = [info for info in options_of(EngineSettings) if info.name == name]
    with pytest.raises(ValueError, match=name):
        parse_option(info, text)
