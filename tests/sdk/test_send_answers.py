"""The answers to messages that are sent together."""

from __future__ import annotations

from broker_adapter import IllegalStateException, JMSException, ResourceAllocationException
from sdk.send_answers import SendAnswers, failed


def test_the_last_answer_wakes_whether_it_comes_before_or_behind_the_last_send() -> None:
    woken: list[int] = []
    answers = SendAnswers(lambda: None, lambda: woken.append(1))
    told = [answers.of(index) for index in range(3)]
    told[1](None)
    told[0](IllegalStateException("closed"))
    assert not answers.is_complete
    answers.all_sent(3)
    assert not answers.is_complete
    assert not woken
    told[2](None)
    assert answers.is_complete
    assert woken == [1]
    early = SendAnswers(lambda: None, lambda: None)
    early.of(0)(None)
    early.all_sent(1)
    assert early.is_complete


def test_nothing_to_send_is_complete_at_once() -> None:
    answers = SendAnswers(lambda: None, lambda: None)
    answers.all_sent(0)
    assert answers.is_complete


def test_the_error_of_the_first_message_says_which_ones_failed() -> None:
    first = ResourceAllocationException("the queue is full", error_code="limit-reached")
    error = failed({7: JMSException("x"), 3: first}, 10)
    assert type(error) is ResourceAllocationException
    assert error.reason == "2 of 10 messages failed; the first of them is message 3: the queue is full"
    assert error.error_code == "limit-reached"
    assert list(error.failures) == [3, 7]
    assert error.failures[3] is first
    assert failed({0: first}, 1) is first
    assert JMSException().failures == {}
