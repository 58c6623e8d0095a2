"""A decision and all it was made from, as plain JSON: what the journal keeps and Spark replays.

`to_record` writes an event, the facts that bear on it and the decision; `from_record` reads them
back, and deciding again gives the same. No text of a message and no secret is in a record.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from accord.relay.errors import Code, RelayError
from accord.relay.gate.decide import Candidate, Decision
from accord.relay.gate.facts import (
    Account,
    Channel,
    Event,
    Facts,
    Grant,
    Home,
    Principal,
    PrincipalPolicy,
    Route,
    Seat,
    Sight,
    User,
    View,
)
from accord.relay.gate.linking import LinkCommand
from accord.relay.gate.narrowing import about
from accord.relay.gate.verdicts import RULES, Layer, Verdict
from accord.relay.wire import members
from accord.relay.wire.policy import RelevancePolicy

VERSION: Final = 1

K = TypeVar("K", bound=tuple[Any, ...])
V = TypeVar("V")


class Recorded(NamedTuple):
    """What a record holds."""

    event: Event
    facts: Facts
    decision: Decision


def to_record(event: Event, facts: Facts, decision: Decision) -> dict[str, Any]:
    """Write a decision with everything that bears on it."""
    kept = about(event, facts)
    return {
        "version": VERSION,
        "event": _write_event(event),
        "facts": {
            "routes": _rows(kept.routes, lambda tenant: [tenant]),
            "bindings": _rows(kept.bindings, lambda instances: [list(instances)]),
            "dm_defaults": _rows(kept.dm_defaults, list),
            "grants": _rows(kept.grants, list),
            "principals": _rows(
                kept.principals, lambda each: [each.policy.value, sorted(each.allow)]
            ),
            "visibility": _rows(kept.visibility, lambda sight: [sight.value]),
            "relevance": _rows(kept.relevance, lambda policy: [policy.to_dict()]),
            "voices": _rows(kept.voices, lambda instances: [sorted(instances)]),
        },
        "decision": {
            "tenant": decision.tenant,
            "verdicts": [_write_verdict(each) for each in decision.verdicts],
            "candidates": [
                {
                    "instance": each.instance,
                    "delivers": each.delivers,
                    "verdicts": [_write_verdict(verdict) for verdict in each.verdicts],
                }
                for each in decision.candidates
            ],
        },
    }


def from_record(record: Any) -> Recorded:
    """Read what `to_record` wrote, as it is or after a journey through JSON.

    Raises:
        RelayError: It is no such record, or of a version that this code does not know.
    """
    if not isinstance(record, dict) or record.get("version") != VERSION:
        raise _bad(f"not a decision's record of version {VERSION}")
    try:
        return Recorded(
            _read_event(record["event"]),
            _read_facts(record["facts"]),
            _read_decision(record["decision"]),
        )
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise _bad(f"the record of a decision is damaged ({type(error).__name__})") from None


def _rows(known: Mapping[K, V], values: Callable[[V], list[Any]]) -> list[list[Any]]:
    return [[*key, *values(value)] for key, value in known.items()]


def _write_event(event: Event) -> dict[str, Any]:
    return {
        name: value.value if isinstance(value, Enum) else value
        for name in Event.__dataclass_fields__
        if (value := getattr(event, name)) is not None
    }


def _write_verdict(verdict: Verdict) -> str | dict[str, str]:
    """The rule's id, which says it all; or the whole of a failure."""
    if verdict.rule in RULES:
        return verdict.rule
    return {
        "layer": verdict.layer.value,
        "rule": verdict.rule,
        "sentence": verdict.sentence,
    }


def _read_event(value: Mapping[str, Any]) -> Event:
    link = members.optional_text(value, "link")
    return Event(
        members.text(value, "event_id"),
        members.text(value, "platform"),
        members.text(value, "bot_id"),
        members.text(value, "chat_id"),
        members.flag(value, "is_dm"),
        members.optional_text(value, "author"),
        members.optional_text(value, "scope_id"),
        members.optional_text(value, "parent_chat_id"),
        members.flag(value, "author_is_bot"),
        members.flag(value, "addressed"),
        members.optional_text(value, "hook"),
        None if link is None else LinkCommand(link),
    )


def _read_facts(value: Mapping[str, Any]) -> Facts:
    return Facts(
        {Route(*_texts(row[:2])): _text(row[2]) for row in value["routes"]},
        {User(*_texts(row[:3])): _texts(row[3]) for row in value["bindings"]},
        {Account(*_texts(row[:2])): Home(*_texts(row[2:])) for row in value["dm_defaults"]},
        {_channel(row): Grant(_text(row[4]), _optional(row[5])) for row in value["grants"]},
        {
            Seat(*_texts(row[:3])): Principal(PrincipalPolicy(row[3]), frozenset(_texts(row[4])))
            for row in value["principals"]
        },
        {_view(row): Sight(row[4]) for row in value["visibility"]},
        {Seat(*_texts(row[:3])): RelevancePolicy.from_dict(row[3]) for row in value["relevance"]},
        {Account(*_texts(row[:2])): frozenset(_texts(row[2])) for row in value["voices"]},
    )


def _read_decision(value: Mapping[str, Any]) -> Decision:
    return Decision(
        _optional(value["tenant"]),
        tuple(_read_verdict(each) for each in value["verdicts"]),
        tuple(
            Candidate(_text(each["instance"]), *map(_read_verdict, each["verdicts"]))
            for each in value["candidates"]
        ),
    )


def _read_verdict(value: Any) -> Verdict:
    if isinstance(value, str):
        return RULES[value]
    layer, rule, sentence = (_text(value[name]) for name in ("layer", "rule", "sentence"))
    return Verdict(Layer(layer), rule, False, sentence)


def _channel(row: list[Any]) -> Channel:
    return Channel(_text(row[0]), _text(row[1]), _optional(row[2]), _text(row[3]))


def _view(row: list[Any]) -> View:
    return View(_text(row[0]), _optional(row[1]), _text(row[2]), _text(row[3]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _optional(value: Any) -> str | None:
    return None if value is None else _text(value)


def _texts(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(map(_text, values))


def _bad(what: str) -> RelayError:
    return RelayError(Code.BAD_REQUEST, what)
