"""Both faces of the SDK have the same names and parameters, but for those that are listed here."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import holdfast.aio
import sdk
from sdk import aio

#: Class by class, what one face has and the other has not.  Listeners and completions call back; a task awaits.
ONLY_SYNCHRONOUS = {
    # events(); and a producer is for all tasks of the loop
    "Connection": {"exception_listener", "event_listener", "create_sender"},
    "MessageConsumer": {"listener", "__iter__"},
    "QueueBrowser": {"__iter__"},
    "ContinuousQuery": {"interest"},  # for the region
    # What an operator of Python does cannot be awaited.
    "Region": {"__setitem__", "__delitem__", "__getitem__", "__contains__", "__iter__"},
}
ONLY_ASYNCHRONOUS = {
    "Connection": {"events"},
    "MessageConsumer": {"__aiter__"},
    "QueueBrowser": {"__aiter__"},
}
#: Properties that may wait, and are methods here.
METHODS = {("Region", "interests"), ("Region", "queries")}
#: Parameters that one face has.
PARAMETERS = {("MessageProducer", "send"): {"on_completion"}}
CLASSES = ("Connection", "Session", "MessageProducer", "MessageConsumer", "QueueBrowser", "Region", "ContinuousQuery")


def public(cls: type) -> set[str]:
    plain = {*vars(object), "__enter__", "__exit__", "__aenter__", "__aexit__", "__del__", "__slots__", "__weakref__"}
    special = {"__iter__", "__aiter__", "__getitem__", "__setitem__", "__delitem__", "__contains__"}
    names = {name for base in cls.__mro__ for name in vars(base) if not name.startswith("_") or name in special}
    return names - plain


def both(name: str) -> tuple[type, type]:
    return getattr(sdk, name), getattr(aio, name)


@pytest.mark.parametrize("name", [*CLASSES, "Requestor"])
def test_the_names_are_the_same(name: str) -> None:
    synchronous, asynchronous = both(name)
    assert public(synchronous) - public(asynchronous) == ONLY_SYNCHRONOUS.get(name, set())
    assert public(asynchronous) - public(synchronous) == ONLY_ASYNCHRONOUS.get(name, set())


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", [*CLASSES, "Requestor"])
def test_the_parameters_are_the_same(name: str) -> None:
    synchronous, asynchronous = both(name)
    for member in sorted(public(synchronous) & public(asynchronous)):
        before, after = getattr(synchronous, member), inspect.getattr_static(asynchronous, member)
        if not inspect.isfunction(before):
            assert (name, member) in METHODS or not inspect.isfunction(after), member
            continue
        left_out = PARAMETERS.get((name, member), set())
        assert [each for each in parameters(before) if each[0] not in left_out] == parameters(after), member


def test_connecting_has_the_parameters_of_the_factory_and_of_its_connections() -> None:
    factory, create = sdk.ConnectionFactory.__init__, sdk.ConnectionFactory.create_connection
    expected = {each[0] for each in [*parameters(factory), *parameters(create)]} - {"self"}
    assert {each[0] for each in parameters(aio.connect)} == expected
    assert parameters(sdk.reply) == parameters(aio.reply)


def test_every_name_says_what_it_is() -> None:
    for name in aio.__all__:
        thing = getattr(aio, name)
        assert inspect.getdoc(thing), name
        if inspect.isclass(thing):
            for member in public(thing) - {"__aiter__"}:
                assert inspect.getdoc(inspect.getattr_static(thing, member)), f"{name}.{member}"


def test_it_has_the_name_of_the_product() -> None:
    assert holdfast.aio.__all__ == aio.__all__
    assert all(getattr(holdfast.aio, name) is getattr(aio, name) for name in aio.__all__)
