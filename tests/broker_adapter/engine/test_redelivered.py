from broker_adapter.engine.redelivered import Redelivered


def test_only_a_later_delivery_is_reported() -> None:
    redelivered = Redelivered()
    redelivered.accepted(1, 7, 2)
    assert redelivered.was_accepted_later(1, 7, 0)
    assert redelivered.was_accepted_later(1, 7, 1)
    assert not redelivered.was_accepted_later(1, 7, 2)
    assert not redelivered.was_accepted_later(1, 8, 0)
    assert not redelivered.was_accepted_later(2, 7, 0)


def test_only_so_many_are_remembered_the_last_ones() -> None:
    redelivered = Redelivered(10)
    for position in range(1000):
        redelivered.accepted(1, position, 1)
    assert len(redelivered) == 10
    assert [position for position in range(1000) if redelivered.was_accepted_later(1, position, 0)] == [
        *range(990, 1000)
    ]
