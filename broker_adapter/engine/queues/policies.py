"""The settings of each queue: those of the policies that match its name, else the engine's options.  Pure.

A *policy* gives settings to the queues, and the subscriptions of topics, whose names match its pattern: words divided
by ``.``, in which ``*`` stands for any text without a dot; ``>`` as the last word stands for one or more words.  Where
several match, the longest pattern that gives a setting wins, ``*`` and ``>`` not counted.  Patterns of one length that
give the same setting to the same name contradict each other.

Temporary queues have the engine's options.  Of a subscription, ``when_full`` and ``delete_idle_seconds`` are options as
well, which have other words for it.  A queue that is the dead-letter queue of any other keeps what it has: its messages
fail as often as they may.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from broker_adapter.destination import Destination, checked_name, resolved
from broker_adapter.errors import InvalidDestinationException
from broker_adapter.settings import EngineSettings, PolicySettings, options_of, parse_option
from broker_adapter.wording import most_similar

#: Most policies of an engine.
MAX_POLICIES: Final = 1_000
#: Settings that a policy does not give to subscriptions.
_OF_QUEUES: Final = ("when_full", "delete_idle_seconds")
#: Settings that name a queue.
_QUEUES: Final = ("dead_letter_queue", "expiry_queue")
_INFOS: Final = {info.name: info for info in options_of(PolicySettings)}
#: Setting → the option of the engine that holds where no policy gives it.
_OPTIONS: Final = {
    each.name: each.metadata["option"] for each in attrs.fields(PolicySettings) if "option" in each.metadata
}


@attrs.frozen(kw_only=True)
class QueueSettings(PolicySettings):
    """What holds for one queue.

    Attributes:
        takes_dead_letters: whether it is a dead-letter queue.
        patterns: setting → the pattern of the policy that gives it.
    """

    takes_dead_letters: bool = False
    patterns: Mapping[str, str] = attrs.field(factory=dict, eq=False)

    def named(self, setting: str) -> str:
        """Return where a setting can be changed, in words."""
        pattern = self.patterns.get(setting)
        return f"option {_OPTIONS[setting]}" if pattern is None else f"{setting} of policy {pattern!r}"

    def shown(self) -> dict[str, tuple[Any, str]]:
        """Return each setting with where it is from: ``default``, an option, or a policy."""
        return {name: (getattr(self, name), self._source(name)) for name in _INFOS}

    def _source(self, setting: str) -> str:
        if setting == "max_deliveries" and self.takes_dead_letters:
            return "dead-letter queue"
        if setting in self.patterns:
            return f"policy {self.patterns[setting]!r}"
        is_default = getattr(self, setting) == _INFOS[setting].default
        return "default" if is_default else f"option {_OPTIONS[setting]}"


@attrs.frozen
class Policy:
    """Settings for the queues whose names match a pattern; see :func:`policy`."""

    match: str
    values: Mapping[str, Any]
    length: int = attrs.field(init=False, eq=False)
    _expression: re.Pattern[str] = attrs.field(init=False, eq=False)

    @length.default
    def _length_of_match(self) -> int:
        return len(self.match) - self.match.count("*") - self.match.count(">")

    @_expression.default
    def _expression_of_match(self) -> re.Pattern[str]:
        return re.compile(r"\.".join(map(_expression_of, self.match.split("."))), re.DOTALL)

    def matches(self, name: str) -> bool:
        """Return whether this is for the queues of a name."""
        return self._expression.fullmatch(name) is not None

    def contradicts(self, other: Policy) -> str | None:
        """Return a setting that both give to the same names, as none of them wins; None: there is none."""
        if self.length != other.length or not _may_meet(self.match, other.match):
            return None
        return min(self.values.keys() & other.values.keys(), default=None)


class PolicyError(ValueError):
    """A policy that cannot be.

    Attributes:
        setting: what of it is wrong, by name.
    """

    def __init__(self, reason: str, setting: str) -> None:
        super().__init__(reason)
        self.setting = setting


def policy(match: object, given: Mapping[str, object]) -> Policy:
    """Make a policy of what a file or program gives.

    Args:
        match: the pattern.
        given: settings by name; ``"none"`` where one may be without.

    Raises:
        PolicyError: the pattern is none, or a setting is unknown or has a value that it cannot have.
    """
    if not isinstance(match, str) or not match:
        raise PolicyError(f"match={match!r:.100} is not a pattern such as 'orders.>'", "match")
    if any(">" in word for word in match.split(".")[:-1]) or (">" in match and match.split(".")[-1] != ">"):
        raise PolicyError(f"match={match!r:.100}: '>' stands for the rest of a name, so it is the last word", "match")
    values: dict[str, Any] = {}
    for name, value in given.items():
        info = _INFOS.get(name)
        if info is None:
            similar = most_similar(name, _INFOS) or f"; the settings are {', '.join(_INFOS)}"
            raise PolicyError(f"unknown setting {name!r:.100}{similar}", name)
        kinds = {"bool": bool, "str": str}.get(info.type.removesuffix(" | None"), (int, float, str))
        try:
            if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
                raise ValueError(f"{name}={value!r:.100} is not what it should be: {info.type}")
            values[name] = parse_option(info, str(value))
            PolicySettings(**{name: values[name]})
            if name in _QUEUES and values[name] is not None:
                _check_queue(name, values[name])
        except ValueError as error:
            raise PolicyError(str(error), name) from None
        except InvalidDestinationException as error:
            raise PolicyError(f"{name}: {error.reason}", name) from None
    return Policy(match, values)


def _check_queue(setting: str, name: str) -> None:
    if resolved(Destination(checked_name(name))).is_temporary:
        raise ValueError(f"{setting}={name!r} names a temporary queue, which ends with its connection")


class Policies:
    """The settings of all queues of an engine.  Immutable: any thread may ask.

    Attributes:
        options: the settings of queues that no policy matches.
        dead_letter_queues: the names of those that take dead letters.
        set_aside: the same, with those that take what has expired.
        has_limits: whether a queue may have a limit.
        has_expiry_queues: whether a queue may have an expiry queue.
        deletes_idle: whether a queue may be deleted that is not used.
        has_consumer_timeouts: whether a consumer may be ended that holds messages for too long.
    """

    def __init__(self, engine: EngineSettings, policies: Sequence[Policy] = ()) -> None:
        self.options = QueueSettings(**{name: getattr(engine, option) for name, option in _OPTIONS.items()})
        named = [*policies, Policy("", attrs.asdict(self.options))]
        self.dead_letter_queues = self._given(named, "dead_letter_queue")
        self.set_aside = self.dead_letter_queues | self._given(named, "expiry_queue")
        self.has_limits = bool(self._given(named, "max_messages") | self._given(named, "max_bytes"))
        self.has_expiry_queues = bool(self._given(named, "expiry_queue"))
        self.deletes_idle = bool(self._given(named, "delete_idle_seconds"))
        self.has_consumer_timeouts = bool(self._given(named, "consumer_timeout_seconds"))
        #: by the first word of their patterns, or none where it has a ``*`` or ``>``; the shortest first
        self._by_first_word: dict[str | None, list[Policy]] = {}
        for each in sorted(policies, key=lambda each: each.length):
            word = each.match.partition(".")[0]
            self._by_first_word.setdefault(None if "*" in word or ">" in word else word, []).append(each)

    @staticmethod
    def _given(policies: Sequence[Policy], setting: str) -> frozenset[Any]:
        return frozenset(each.values.get(setting) for each in policies) - {None}

    def settings_of(self, destination: Destination) -> QueueSettings:
        """Return what holds for a queue of this name, or for the subscriptions of a topic of this name."""
        name = destination.name
        if resolved(destination).is_temporary:
            return self.options
        candidates = [*self._by_first_word.get(None, ()), *self._by_first_word.get(name.partition(".")[0], ())]
        values: dict[str, Any] = {}
        patterns: dict[str, str] = {}
        for each in sorted(candidates, key=lambda each: each.length):
            if each.matches(name):
                values.update(each.values)
                patterns.update(dict.fromkeys(each.values, each.match))
        if destination.is_topic:
            for setting in _OF_QUEUES:
                values.pop(setting, None)
                patterns.pop(setting, None)
        elif name in self.dead_letter_queues:
            values |= {"takes_dead_letters": True, "max_deliveries": None}
        return attrs.evolve(self.options, **values, patterns=patterns) if values else self.options


def contradictions(policies: Sequence[Policy]) -> Iterator[tuple[Policy, Policy, str]]:
    """Yield which policies, and which setting, give different values to the same names, as none of them wins."""
    for number, each in enumerate(policies):
        for earlier in policies[:number]:
            setting = each.contradicts(earlier)
            if setting is not None:
                yield each, earlier, setting


def _expression_of(word: str) -> str:
    """A word as a regular expression whose cost does not grow with its number of ``*``: no ``*`` is tried twice."""
    if word == ">":
        return ".+"
    first, *others = map(re.escape, word.split("*"))
    if not others:
        return first
    return first + "".join(rf"(?>[^.]*?{each})" for each in others[:-1]) + rf"[^.]*{others[-1]}"


def _may_meet(first: str, second: str) -> bool:
    """Whether a name can match both of two patterns."""
    one, other = first.split("."), second.split(".")
    for word, another in zip(one, other, strict=False):
        if ">" in (word, another):
            return True
        if not _words_may_meet(word, another):
            return False
    return len(one) == len(other)


def _words_may_meet(word: str, other: str) -> bool:
    if "*" not in word and "*" not in other:
        return word == other
    if "*" not in word or "*" not in other:
        literal, pattern = (word, other) if "*" not in word else (other, word)
        return re.fullmatch(_expression_of(pattern), literal) is not None
    heads, tails = (word.split("*")[0], other.split("*")[0]), (word.split("*")[-1], other.split("*")[-1])
    begin = heads[0].startswith(heads[1]) or heads[1].startswith(heads[0])
    return begin and (tails[0].endswith(tails[1]) or tails[1].endswith(tails[0]))
