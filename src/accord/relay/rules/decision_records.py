"""Decisions of the gate with the facts they depend on, as plain JSON.

The journal keeps these records and Spark decides them again, with the same result. They contain no
message text and no secret.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from accord.relay.errors import Code, RelayError
from accord.relay.rules import gate, members
from accord.relay.rules.gate import (
    Candidate,
    ChannelGrant,
    Decision,
    DmDefault,
    Facts,
    GateEvent,
    OpenKey,
    OpenPlace,
    PlatformAccount,
    PolicyKey,
    PrincipalPolicy,
    PrincipalRule,
    RelevancePolicy,
    RouteKey,
    TenantAccount,
    TenantChannel,
    Visibility,
    VisibilityKey,
)
from accord.relay.rules.messages import LinkCommand
from accord.relay.rules.verdicts import GATE_RULES, GateVerdict, Layer

K = TypeVar("K", bound=tuple[Any, ...])
V = TypeVar("V")


def narrow_facts(event: GateEvent, facts: Facts) -> Facts:
    """The facts that the decision on an event depends on."""
    platform, author = event.platform, event.author or ""
    account = PlatformAccount(platform, author)
    routes = _only(facts.routes, [event.discriminator])
    is_by_author = event.is_dm or gate.is_author_first(event, facts)
    homes = _only(facts.dm_defaults, [account] if is_by_author else [])
    shared = facts.shared & {event.discriminator}
    voices = _only(facts.voices, [account])
    tenant, _ = gate.find_tenant(event, facts)
    opened = _only(facts.open, gate.open_keys(event) if event.hook is None else ())
    if tenant is None:
        return Facts(routes=routes, dm_defaults=homes, shared=shared, open=opened)
    channels = (
        [event.chat_id]
        if event.parent_chat_id is None
        else [
            event.chat_id,
            event.parent_chat_id,
        ]
    )
    grants = _only(
        facts.grants,
        [TenantChannel(tenant, platform, event.scope_id, channel) for channel in channels],
    )
    owners = {grant.owner for grant in grants.values() if grant.owner is not None}
    bindings = _only(
        facts.bindings,
        [TenantAccount(tenant, platform, user) for user in sorted({author, *owners})],
    )
    instances = {grant.instance for grant in grants.values()}
    instances.update(bindings.get(TenantAccount(tenant, platform, author), ()))
    instances.update(each.instance for each in opened.values() if each.tenant == tenant)
    keys = [PolicyKey(tenant, instance, platform) for instance in sorted(instances)]
    views = [
        VisibilityKey(platform, event.scope_id, event.chat_id, user)
        for user in sorted({author, *owners})
    ]
    considered = frozenset(instances)
    return Facts(
        routes,
        bindings,
        homes,
        grants,
        {
            key: each._replace(allow=each.allow & {author})
            for key, each in _only(facts.principals, keys).items()
        },
        _only(facts.visibility, views),
        {
            key: RelevancePolicy(
                each.require_address, each.free_response_scopes & {*channels}, each.allow_other_bots
            )
            for key, each in _only(facts.relevance, keys).items()
        },
        {account: spoken & considered for account, spoken in voices.items()},
        shared,
        opened,
        facts.limited & {account},
    )


@dataclass(frozen=True, slots=True)
class Aliases:
    """What stands in a record for the author of an event, for its id, and for its chats."""

    author: str | None
    event_id: str
    # By chat id; a chat that is not named keeps its id.
    chats: Mapping[str, str]


def with_aliases(event: GateEvent, facts: Facts, aliases: Aliases) -> tuple[GateEvent, Facts]:
    """An event and its facts under other names, by which the gate decides the same.

    Facts about others than the author are left as they are.
    """
    narrow, author, other = narrow_facts(event, facts), event.author or "", aliases.author or ""
    chats = aliases.chats

    def place(key: RouteKey) -> RouteKey:
        is_chat = event.hook is None and event.scope_id is None
        return key._replace(key=chats.get(key.key, key.key)) if is_chat else key

    def user(user_id: str) -> str:
        return other if user_id == author else user_id

    renamed = Facts(
        {place(key): tenant for key, tenant in narrow.routes.items()},
        {k._replace(user_id=user(k.user_id)): each for k, each in narrow.bindings.items()},
        {k._replace(user_id=user(k.user_id)): home for k, home in narrow.dm_defaults.items()},
        {
            k._replace(channel_id=chats.get(k.channel_id, k.channel_id)): grant._replace(
                owner=None if grant.owner is None else user(grant.owner)
            )
            for k, grant in narrow.grants.items()
        },
        {
            key: each._replace(allow=frozenset(map(user, each.allow)))
            for key, each in narrow.principals.items()
        },
        {
            k._replace(chat_id=chats.get(k.chat_id, k.chat_id), user_id=user(k.user_id)): seen
            for k, seen in narrow.visibility.items()
        },
        {
            key: replace(
                each,
                free_response_scopes=frozenset(
                    chats.get(scope, scope) for scope in each.free_response_scopes
                ),
            )
            for key, each in narrow.relevance.items()
        },
        {k._replace(user_id=user(k.user_id)): each for k, each in narrow.voices.items()},
        frozenset(map(place, narrow.shared)),
        {
            k._replace(channel_id=chats.get(k.channel_id, k.channel_id)): each
            for k, each in narrow.open.items()
        },
        frozenset(k._replace(user_id=user(k.user_id)) for k in narrow.limited),
    )
    parent = event.parent_chat_id
    return replace(
        event,
        event_id=aliases.event_id,
        author=aliases.author,
        chat_id=chats.get(event.chat_id, event.chat_id),
        parent_chat_id=None if parent is None else chats.get(parent, parent),
    ), renamed


def _only(known: Mapping[K, V], keys: Iterable[K]) -> dict[K, V]:
    return {key: known[key] for key in keys if key in known}


VERSION: Final = 1


class DecidedAgain(NamedTuple):
    """The event, by our id, that an earlier record is about, and the instance it was parked for."""

    event: str
    instance: str


class DecisionRecord(NamedTuple):
    """The content of a record.

    With `again`, it takes the place of what an earlier record says about one instance.
    """

    event: GateEvent
    facts: Facts
    decision: Decision
    again: DecidedAgain | None = None


def to_record(
    event: GateEvent, facts: Facts, decision: Decision, again: DecidedAgain | None = None
) -> dict[str, Any]:
    """Write a decision with the facts it depends on."""
    narrow = narrow_facts(event, facts)
    # Members that came later are written only where there is something to write.
    later = {
        "shared": [list(each) for each in sorted(narrow.shared)],
        "open": _rows(narrow.open, list),
        "limited": [list(each) for each in sorted(narrow.limited)],
    }
    return {
        "version": VERSION,
        **({} if again is None else {"again": again._asdict()}),
        "event": write_event(event),
        "facts": {
            "routes": _rows(narrow.routes, lambda tenant: [tenant]),
            "bindings": _rows(narrow.bindings, lambda instances: [list(instances)]),
            "dm_defaults": _rows(narrow.dm_defaults, list),
            "grants": _rows(narrow.grants, list),
            "principals": _rows(
                narrow.principals, lambda each: [each.policy.value, sorted(each.allow)]
            ),
            "visibility": _rows(narrow.visibility, lambda visible: [visible.value]),
            "relevance": _rows(narrow.relevance, lambda policy: [policy.to_dict()]),
            "voices": _rows(narrow.voices, lambda instances: [sorted(instances)]),
            **{name: rows for name, rows in later.items() if rows},
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


def from_record(record: Any) -> DecisionRecord:
    """Read what `to_record` wrote, also after a round trip through JSON."""
    if not isinstance(record, dict) or record.get("version") != VERSION:
        raise _bad(f"not a decision's record of version {VERSION}")
    try:
        return DecisionRecord(
            _read_event(record["event"]),
            _read_facts(record["facts"]),
            _read_decision(record["decision"]),
            _read_again(record.get("again")),
        )
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise _bad(f"the record of a decision is damaged ({type(error).__name__})") from None


def _rows(known: Mapping[K, V], values: Callable[[V], list[Any]]) -> list[list[Any]]:
    return [[*key, *values(value)] for key, value in known.items()]


def write_event(event: GateEvent) -> dict[str, Any]:
    """An event as plain JSON, for records and for whoever decides it again later."""
    return {
        name: value.value if isinstance(value, Enum) else value
        for name in GateEvent.__dataclass_fields__
        if (value := getattr(event, name)) is not None
    }


def _write_verdict(verdict: GateVerdict) -> str | dict[str, str]:
    """The rule's id; of a failure, the whole verdict."""
    if verdict.rule in GATE_RULES:
        return verdict.rule
    return {
        "layer": verdict.layer.value,
        "rule": verdict.rule,
        "sentence": verdict.sentence,
    }


def read_event(value: Any) -> GateEvent:
    """Read what `write_event` wrote."""
    try:
        return _read_event(value)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise _bad(f"the stored event is damaged ({type(error).__name__})") from None


def _read_event(value: Mapping[str, Any]) -> GateEvent:
    link = members.optional_text(value, "link")
    return GateEvent(
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
        {RouteKey(*_texts(row[:2])): _text(row[2]) for row in value["routes"]},
        {TenantAccount(*_texts(row[:3])): _texts(row[3]) for row in value["bindings"]},
        {
            PlatformAccount(*_texts(row[:2])): DmDefault(*_texts(row[2:]))
            for row in value["dm_defaults"]
        },
        {_channel(row): ChannelGrant(_text(row[4]), _optional(row[5])) for row in value["grants"]},
        {
            PolicyKey(*_texts(row[:3])): PrincipalRule(
                PrincipalPolicy(row[3]), frozenset(_texts(row[4]))
            )
            for row in value["principals"]
        },
        {_view(row): Visibility(row[4]) for row in value["visibility"]},
        {
            PolicyKey(*_texts(row[:3])): RelevancePolicy.from_dict(row[3])
            for row in value["relevance"]
        },
        {PlatformAccount(*_texts(row[:2])): frozenset(_texts(row[2])) for row in value["voices"]},
        frozenset(RouteKey(*_texts(row)) for row in value.get("shared", ())),
        {OpenKey(*_texts(row[:3])): OpenPlace(*_texts(row[3:])) for row in value.get("open", ())},
        frozenset(PlatformAccount(*_texts(row)) for row in value.get("limited", ())),
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


def _read_again(value: Any) -> DecidedAgain | None:
    return None if value is None else DecidedAgain(_text(value["event"]), _text(value["instance"]))


def _read_verdict(value: Any) -> GateVerdict:
    if isinstance(value, str):
        return GATE_RULES[value]
    layer, rule, sentence = (_text(value[name]) for name in ("layer", "rule", "sentence"))
    return GateVerdict(Layer(layer), rule, False, sentence)


def _channel(row: list[Any]) -> TenantChannel:
    return TenantChannel(_text(row[0]), _text(row[1]), _optional(row[2]), _text(row[3]))


def _view(row: list[Any]) -> VisibilityKey:
    return VisibilityKey(_text(row[0]), _optional(row[1]), _text(row[2]), _text(row[3]))


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
