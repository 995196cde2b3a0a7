"""Settings: their limits, and their forms as text."""

from __future__ import annotations

import pytest

from broker_adapter.settings import (
    AmqpSettings,
    ClientSettings,
    EmbeddedSettings,
    EngineSettings,
    FailoverSettings,
    ServerSettings,
    options_of,
    parse_option,
    renamed,
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


#: Every name that an option has had.  A new option comes into this list, and none is removed from it.
EVERY_NAME = """
    event_acknowledge_seconds event_conflation event_window_messages
    allow_insecure_redirects allow_plain_without_tls browser_prefetch_messages close_timeout_seconds
    commit_memory_seconds connect_delay_seconds connect_timeout_seconds cycle_count dead_letter_queue
    delete_idle_queues_seconds delete_idle_subscriptions_seconds dups_ok_batch_messages dups_ok_delay_seconds
    durable_prefetch_messages envelope expiry_queue failed_login_delay_seconds failover failover_server_list
    full_subscription
    handshake_timeout_seconds blocked_send_timeout_seconds idle_timeout_seconds initial_reconnect_delay_seconds
    link_credit_messages local_message_expiry max_client_interests max_client_queue_events max_connection_bytes
    max_connections max_delayed_redeliveries max_deliveries max_destinations max_durable_clients
    max_failed_login_delay_seconds max_frame_bytes max_blocked_sends
    max_in_hand_messages max_input_bytes max_links max_login_connections max_login_connections_per_address
    max_logins max_logins_per_address max_message_bytes max_output_bytes max_producers max_queue_bytes
    max_queue_messages max_reconnect_attempts max_reconnect_delay_seconds max_redeliveries
    max_redelivery_delay_seconds max_resting_messages max_sessions max_store_bytes max_transaction_bytes
    max_transaction_entries max_transaction_messages max_unsettled_messages max_volatile_bytes max_window_messages
    memory message_cache_bytes message_id_policy min_free_disk_bytes poll_timeout_seconds populate_user_id
    prefetch_messages publish_memory_seconds queue_prefetch_messages queue_prefix randomize
    reconnect_delay_seconds reconnect_jitter reconnect_multiplier redelivery_delay_seconds redelivery_multiplier
    region_snapshot_seconds request_timeout_seconds retries sasl_mechanisms send_timeout_seconds
    send_window_messages stable_seconds
    staged_timeout_seconds startup_max_reconnect_attempts synchronous_acknowledge tls_ca_file tls_certificate_file
    tls_key_file tls_verify_host tombstone_seconds topic_prefetch_messages topic_prefix transaction_bytes
    transaction_messages transaction_timeout_seconds trust_broker trusted_hosts vhost window_messages
"""


def test_an_option_that_was_renamed_answers_with_its_new_name() -> None:
    known = [info.name for info in options_of(*CLASSES, FailoverSettings)]
    assert set(known) <= set(EVERY_NAME.split()), "a new option comes into the list"
    answers = {name: renamed(name, known) for name in EVERY_NAME.split() if name not in known}
    assert answers == {
        "max_logins": "option 'max_logins' is called 'max_login_connections' now",
        "max_logins_per_address": "option 'max_logins_per_address' is called 'max_login_connections_per_address' now",
        "max_resting_messages": "option 'max_resting_messages' is called 'max_delayed_redeliveries' now",
    }


def test_a_new_name_is_not_given_where_it_is_no_option() -> None:
    assert renamed("max_logins", [info.name for info in options_of(EngineSettings)]) is None
    assert renamed("nonsense", ["nonsense"]) is None
