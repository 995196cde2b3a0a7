from broker_adapter.engine.queues.redelivered import Redelivered


def test_only_a_later_delivery_is_reported() -> None:
    redelivered = Redelivered()
    redelivered.ended(1, 7, 2)
    assert redelivered.ended_later(1, 7, 0)
    assert redelivered.ended_later(1, 7, 1)
    assert not redelivered.ended_later(1, 7, 2)
    assert not redelivered.ended_later(1, 8, 0)
    assert not redelivered.ended_later(2, 7, 0)
    assert [redelivered.has_ended(*place) for place in ((1, 7), (1, 8), (2, 7))] == [True, False, False]


def test_only_so_many_are_remembered_the_last_ones() -> None:
    redelivered = Redelivered(10)
    for position in range(1000):
        redelivered.ended(1, position, 1)
    assert len(redelivered) == 10
    assert [position for position in range(1000) if redelivered.ended_later(1, position, 0)] == [*range(990, 1000)]
