"""What an operator can ask and change: one table of verbs, for the command line and over HTTP.

A verb takes a typed request and answers a JSON object. `perform` runs one on an open connector;
`OperatorRoutes` serves all of them below `/manage/operator`, to whoever shows an operator's token.
"""

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, TypeVar

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from accord.kernel.clock import Clock, format_time
from accord.relay.connector import operators, registry, session_rules
from accord.relay.connector.dead_letters import letter_numbers
from accord.relay.connector.http import client_key, read_bearer, read_body, respond
from accord.relay.connector.ingest import Explanation, latest_events
from accord.relay.connector.manage import Control
from accord.relay.connector.operators import OperatorToken
from accord.relay.connector.outbox_store import require_numbers
from accord.relay.connector.store import Storage
from accord.relay.errors import Code, RelayError
from accord.relay.remote import OPERATOR_ROUTE
from accord.relay.rules.gate import PrincipalPolicy, RelevancePolicy
from accord.relay.rules.members import bad
from accord.relay.rules.messages import SessionOverride
from accord.relay.rules.verdicts import UNKNOWN_RULES, GateVerdict
from accord.storage import StoreError
from accord.web.incoming import TokenBuckets

if TYPE_CHECKING:
    from accord.relay.connector.connector import Delivery

JsonObject: TypeAlias = dict[str, Any]

_log: Final = structlog.stdlib.get_logger(__name__)
# How many letters one unit of work takes up again, so that deliveries get their turn.
_AT_ONCE: Final = 500
_MOST_NUMBERS: Final = 10_000
_MOST_ADDRESSES: Final = 10_000


class Request(BaseModel):
    """The body of a verb; unknown members are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


R = TypeVar("R", bound=Request)
Handler: TypeAlias = Callable[["Operation", R], Awaitable[JsonObject]]
Text = Annotated[str, Field(max_length=512)]
Limit = Annotated[int, Field(ge=1, le=10_000)]
Numbers = Annotated[list[int], Field(max_length=_MOST_NUMBERS)]


class Nothing(Request):
    """No members."""


class OfTenant(Request):
    """Everything, or what belongs to one tenant."""

    tenant: Text | None = None


class OfInstance(Request):
    """One instance."""

    instance: Text


class OneOfBoth(Request):
    """One instance, or one tenant with all its instances."""

    instance: Text | None = None
    tenant: Text | None = None


class NewToken(Request):
    """A token by which one gateway can enrol."""

    tenant: Text
    instance: Text | None = None
    name: Text | None = None
    seconds: int


class Link(Request):
    """An account on a platform, and an instance."""

    instance: Text
    platform: Text
    user: Text


class ListLinks(Request):
    """Links, of all instances or of one."""

    instance: Text | None = None
    limit: Limit = 1000


class Unlink(Request):
    """The links of an account, or its link to one instance."""

    platform: Text
    user: Text
    instance: Text | None = None


class Rotate(Request):
    """A new secret; `grace` is for how many seconds the old one stays good."""

    instance: Text
    grace: Annotated[int, Field(ge=0, le=604_800)]


class RotateKey(Request):
    """A new key for `relay.key`; with `finish` none, only the rest of an earlier rotation."""

    finish: bool = False


class RouteTo(Request):
    """A route key of a platform; without a tenant it is taken away."""

    platform: Text
    key: Text
    tenant: Text | None = None


class Share(Request):
    """A route key of a platform, and whether several tenants share it."""

    platform: Text
    key: Text
    shared: bool


class WakeUrl(OfInstance):
    """What is requested to wake an instance; null for nothing."""

    url: Annotated[str, Field(max_length=2048)] | None


class SetSessions(OfInstance):
    """How an instance's gateway keys sessions, all of it anew; null for what it declares itself."""

    group_sessions_per_user: bool | None = None
    thread_sessions_per_user: bool | None = None
    profile: Text | None = None
    pinned: bool = False


class Place(Request):
    """A channel, a whole scope with the channel '', or with both '' direct messages."""

    platform: Text
    scope_id: Text
    channel_id: Text


class OpenFor(Place):
    """A place, and the instance that is open to everybody in it."""

    instance: Text


class Channel(Request):
    """A channel, and an instance."""

    instance: Text
    platform: Text
    scope_id: Text
    channel_id: Text


class Grant(Channel):
    """A channel for an instance; `owner` is whose view counts."""

    owner: Text | None = None


class OnPlatform(Request):
    """An instance on a platform."""

    instance: Text
    platform: Text


class SetPrincipal(OnPlatform):
    """Whose messages an instance hears in the channels that it holds."""

    policy: Literal["owner-only", "allow-list", "any"]
    allow: Annotated[list[Text], Field(max_length=10_000)] = []


class SetRelevance(OnPlatform):
    """When an instance wants to be spoken to, all of it anew."""

    require_address: bool = False
    free: Annotated[list[Text], Field(max_length=10_000)] = []
    other_bots: bool = False


class Why(Request):
    """One event by our id or the platform's."""

    event: Text


class Latest(Request):
    """The latest events."""

    last: Annotated[int, Field(ge=1, le=1000)]


class ListLetters(Request):
    """Dead letters of both directions, of all instances or of one."""

    instance: Text | None = None
    limit: Limit


class Letters(Request):
    """Dead letters of an instance by their numbers; null for all."""

    instance: Text
    numbers: Numbers | None


class ListActions(Request):
    """Actions in the outbox: all, those given up, or those that wait."""

    instance: Text | None = None
    dead: bool | None = None
    limit: Limit


class Actions(Request):
    """Actions in the outbox by their numbers."""

    numbers: Numbers


class NewOperator(Request):
    """A token for an operator."""

    name: Text
    seconds: int
    read_only: bool


class Operator(Request):
    """The name of an operator."""

    name: Text


@dataclass(frozen=True, slots=True)
class Operation:
    """What a verb works on, and who acts, as the journal names them."""

    control: Control
    delivery: "Delivery"
    store: Storage
    by: str


@dataclass(frozen=True, slots=True)
class Verb:
    """Something that an operator can do.

    Attributes:
        writes: A token that may only read is refused.
        is_local: No token is enough: it is done on the connector's own machine.
    """

    name: str
    request: type[Request]
    run: Callable[[Operation, Any], Awaitable[JsonObject]]
    writes: bool
    is_local: bool


VERBS: Final[dict[str, Verb]] = {}
"""Every verb by its name, which is also the end of its route."""


def _verb(
    name: str, request: type[R], *, writes: bool = False, is_local: bool = False
) -> Callable[[Handler[R]], Handler[R]]:
    def add(run: Handler[R]) -> Handler[R]:
        VERBS[name] = Verb(name, request, run, writes, is_local)
        return run

    return add


async def perform(operation: Operation, name: str, body: JsonObject) -> JsonObject:
    """Run a verb; raises RelayError."""
    verb = VERBS[name]
    return await verb.run(operation, read_request(verb, body))


def read_request(verb: Verb, body: JsonObject) -> Any:
    """The typed request of a verb; BAD_REQUEST names the first member that is wrong."""
    try:
        return verb.request.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = "/".join(map(str, first["loc"]))
        told = first["msg"][:1].lower() + first["msg"][1:]
        raise bad(
            f"{verb.name}: {told}", where=f"/{place}", mend="use a command line of the same version"
        ) from None


@_verb("instances", OfTenant)
async def _instances(on: Operation, asked: OfTenant) -> JsonObject:
    found = [
        {
            **asdict(each),
            "refused": registry.refused_hellos(each),
            "sessions": session_rules.describe(each),
            "live": each.live,
            "empty": await on.delivery.is_empty(each.instance),
        }
        for each in await on.control.instances(asked.tenant)
    ]
    return {"instances": found}


@_verb("tokens/new", NewToken, writes=True)
async def _new_token(on: Operation, asked: NewToken) -> JsonObject:
    made = await on.control.mint_token(
        asked.tenant, asked.instance, name=asked.name, seconds=asked.seconds
    )
    return {
        "token": made.token,
        "tenant": made.tenant,
        "instance": made.instance,
        "expires_at": _time(made.expires_at),
    }


@_verb("tokens/list", OfTenant)
async def _tokens(on: Operation, asked: OfTenant) -> JsonObject:
    found = await on.store.read(lambda c: registry.list_tokens(c, asked.tenant))
    return {"tokens": [asdict(each) for each in found]}


@_verb("links/new", OfInstance, writes=True)
async def _new_link(on: Operation, asked: OfInstance) -> JsonObject:
    control = on.control
    made = await control.link(await control.principal(asked.instance))
    return {"code": made.code, "expires_at": _time(made.expires_at)}


@_verb("links/add", Link, writes=True)
async def _add_link(on: Operation, asked: Link) -> JsonObject:
    await on.control.bind(asked.instance, asked.platform, asked.user)
    return asked.model_dump()


@_verb("links/list", ListLinks)
async def _list_links(on: Operation, asked: ListLinks) -> JsonObject:
    found = await on.store.read(lambda c: registry.list_links(c, asked.instance, asked.limit))
    return {"links": [asdict(each) for each in found]}


@_verb("links/remove", Unlink, writes=True)
async def _unlink(on: Operation, asked: Unlink) -> JsonObject:
    count = await on.control.unbind(asked.platform, asked.user, asked.instance)
    return {**asked.model_dump(), "removed": count}


@_verb("links/default", Link, writes=True)
async def _default(on: Operation, asked: Link) -> JsonObject:
    control = on.control
    caller = await control.principal(asked.instance)
    await control.set_dm_default(caller, asked.platform, asked.user)
    return asked.model_dump()


@_verb("rotate", Rotate, writes=True)
async def _rotate(on: Operation, asked: Rotate) -> JsonObject:
    control = on.control
    caller = await control.principal(asked.instance)
    made = await control.rotate(caller, grace_seconds=asked.grace)
    return {"secret": made.secret, "old_until": _time(made.old_until)}


@_verb("key/show", Nothing)
async def _show_keys(on: Operation, _asked: Nothing) -> JsonObject:
    return asdict(await on.control.key_status())


@_verb("key/prepare", Nothing, writes=True)
async def _prepare_key(on: Operation, _asked: Nothing) -> JsonObject:
    return asdict(await on.control.prepare_key())


@_verb("key/rotate", RotateKey, writes=True)
async def _rotate_key(on: Operation, asked: RotateKey) -> JsonObject:
    return {"encrypted": await on.control.rotate_key(with_new_key=not asked.finish)}


@_verb("key/forget", Nothing, writes=True)
async def _forget_keys(on: Operation, _asked: Nothing) -> JsonObject:
    return {"forgotten": await on.control.forget_keys()}


@_verb("wake-url/show", OfInstance)
async def _show_wake_url(on: Operation, asked: OfInstance) -> JsonObject:
    status = await on.control.status(await on.control.principal(asked.instance))
    has_one = status["hasWakeUrl"]
    return {
        "instance": asked.instance,
        "has_wake_url": has_one,
        "set_by": status["wakeUrlSetBy"] if has_one else None,
    }


@_verb("wake-url/set", WakeUrl, writes=True)
async def _set_wake_url(on: Operation, asked: WakeUrl) -> JsonObject:
    caller = await on.control.principal(asked.instance)
    await on.control.set_wake_url(caller, asked.url, by_operator=True)
    return await _show_wake_url(on, asked)


@_verb("sessions/show", OfInstance)
async def _show_sessions(on: Operation, asked: OfInstance) -> JsonObject:
    record = await on.store.read(lambda c: registry.need(c, asked.instance))
    return {"instance": asked.instance, **session_rules.describe(record)}


@_verb("sessions/set", SetSessions, writes=True)
async def _set_sessions(on: Operation, asked: SetSessions) -> JsonObject:
    said = SessionOverride.from_dict(asked.model_dump(exclude={"instance"}))
    await on.control.override_sessions(asked.instance, said if said.to_dict() else None)
    return await _show_sessions(on, asked)


@_verb("revoke", OneOfBoth, writes=True)
async def _revoke(on: Operation, asked: OneOfBoth) -> JsonObject:
    instance = _one_of(asked)
    if instance is None:
        return {"revoked": await on.control.suspend(asked.tenant or "")}
    await on.control.revoke(instance)
    return {"revoked": [instance]}


@_verb("pardon", OneOfBoth, writes=True)
async def _pardon(on: Operation, asked: OneOfBoth) -> JsonObject:
    instance = _one_of(asked)
    if instance is None:
        await on.control.resume(asked.tenant or "")
        return {"pardoned": asked.tenant}
    return {"pardoned": instance if await on.control.pardon(instance) else None}


@_verb("route", RouteTo, writes=True)
async def _route(on: Operation, asked: RouteTo) -> JsonObject:
    if asked.tenant is None:
        await on.control.unroute(asked.platform, asked.key)
    else:
        await on.control.route(asked.tenant, asked.platform, asked.key)
    return {"platform": asked.platform, "key": asked.key, "tenant": asked.tenant}


@_verb("share", Share, writes=True)
async def _share(on: Operation, asked: Share) -> JsonObject:
    change = on.control.share if asked.shared else on.control.unshare
    return {**asked.model_dump(), "changed": await change(asked.platform, asked.key)}


@_verb("places", Nothing)
async def _places(on: Operation, _asked: Nothing) -> JsonObject:
    return {"places": await on.control.places()}


@_verb("open", OpenFor, writes=True)
async def _open(on: Operation, asked: OpenFor) -> JsonObject:
    await on.control.open(asked.instance, asked.platform, asked.scope_id, asked.channel_id)
    return asked.model_dump()


@_verb("close", Place, writes=True)
async def _close(on: Operation, asked: Place) -> JsonObject:
    closed = await on.control.close(asked.platform, asked.scope_id, asked.channel_id)
    return {**asked.model_dump(), "instance": closed}


@_verb("grant", Grant, writes=True)
async def _grant(on: Operation, asked: Grant) -> JsonObject:
    await on.control.grant(
        asked.instance, asked.platform, asked.scope_id, asked.channel_id, asked.owner
    )
    return asked.model_dump(exclude={"owner"})


@_verb("release", Channel, writes=True)
async def _release(on: Operation, asked: Channel) -> JsonObject:
    control = on.control
    caller = await control.principal(asked.instance)
    await control.release_scope(caller, asked.platform, asked.scope_id, asked.channel_id)
    return asked.model_dump()


@_verb("principals/show", OnPlatform)
async def _show_principal(on: Operation, asked: OnPlatform) -> JsonObject:
    default = {
        "platform": asked.platform,
        "policy": PrincipalPolicy.OWNER_ONLY.value,
        "allow": [],
    }
    return await _of_platform(on, asked, "principals") or default


@_verb("principals/set", SetPrincipal, writes=True)
async def _set_principal(on: Operation, asked: SetPrincipal) -> JsonObject:
    control = on.control
    caller = await control.principal(asked.instance)
    policy = PrincipalPolicy(asked.policy)
    await control.set_principal(caller, asked.platform, policy, asked.allow)
    return await _show_principal(on, asked)


@_verb("relevance/show", OnPlatform)
async def _show_relevance(on: Operation, asked: OnPlatform) -> JsonObject:
    default = {"platform": asked.platform, **RelevancePolicy().to_dict(), "setBy": "gateway"}
    return await _of_platform(on, asked, "relevance") or default


@_verb("relevance/set", SetRelevance, writes=True)
async def _set_relevance(on: Operation, asked: SetRelevance) -> JsonObject:
    control = on.control
    caller = await control.principal(asked.instance)
    wanted = RelevancePolicy(
        require_address=asked.require_address,
        free_response_scopes=frozenset(asked.free),
        allow_other_bots=asked.other_bots,
    )
    await control.set_relevance(caller, asked.platform, wanted, by_operator=True)
    return await _show_relevance(on, asked)


@_verb("relevance/unset", OnPlatform, writes=True)
async def _unset_relevance(on: Operation, asked: OnPlatform) -> JsonObject:
    control = on.control
    await control.unpin_relevance(await control.principal(asked.instance), asked.platform)
    return await _show_relevance(on, asked)


@_verb("why", Why)
async def _why(on: Operation, asked: Why) -> JsonObject:
    found = await on.delivery.why(asked.event)
    if found is None:
        raise RelayError(
            Code.NOT_FOUND,
            "nothing is known of this event",
            where=asked.event,
            mend="`accord relay why` lists the latest; records are kept as long as the journal",
        )
    return explanation_json(found)


@_verb("why/latest", Latest)
async def _latest(on: Operation, asked: Latest) -> JsonObject:
    found = await on.store.read(lambda c: latest_events(c, asked.last))
    return {"events": [explanation_json(each) for each in found]}


@_verb("letters/list", ListLetters)
async def _list_letters(on: Operation, asked: ListLetters) -> JsonObject:
    letters = await on.delivery.dead_letters(asked.instance, asked.limit)
    replies = await on.delivery.outbox(asked.instance, asked.limit, dead=True)
    return {
        "letters": [asdict(each) for each in letters],
        "replies": [asdict(each) for each in replies],
    }


@_verb("letters/replay", Letters, writes=True)
async def _replay(on: Operation, asked: Letters) -> JsonObject:
    there = await _letters(on, asked)
    for some in _batches(there):
        await on.delivery.replay(asked.instance, some, on.by)
    return {"instance": asked.instance, "replayed": len(there)}


@_verb("letters/drop", Letters, writes=True)
async def _drop(on: Operation, asked: Letters) -> JsonObject:
    there = await _letters(on, asked)
    for some in _batches(there):
        await on.delivery.drop(asked.instance, some, on.by)
    return {"instance": asked.instance, "dropped": len(there)}


@_verb("outbox/list", ListActions)
async def _list_actions(on: Operation, asked: ListActions) -> JsonObject:
    found = await on.delivery.outbox(asked.instance, asked.limit, dead=asked.dead)
    return {"actions": [asdict(each) for each in found]}


@_verb("outbox/retry", Actions, writes=True)
async def _retry_actions(on: Operation, asked: Actions) -> JsonObject:
    await on.store.read(lambda c: require_numbers(c, asked.numbers))
    return {"retried": await on.delivery.retry_actions(asked.numbers, on.by)}


@_verb("outbox/drop", Actions, writes=True)
async def _drop_actions(on: Operation, asked: Actions) -> JsonObject:
    await on.store.read(lambda c: require_numbers(c, asked.numbers))
    return {"dropped": await on.delivery.drop_actions(asked.numbers, on.by)}


@_verb("retention/show", Nothing)
async def _show_retention(on: Operation, _asked: Nothing) -> JsonObject:
    return asdict(await on.delivery.clock_status())


@_verb("retention/confirm", Nothing, writes=True)
async def _confirm_clock(on: Operation, _asked: Nothing) -> JsonObject:
    await on.delivery.confirm_clock(on.by)
    return asdict(await on.delivery.clock_status())


@_verb("operators/new", NewOperator, writes=True, is_local=True)
async def _new_operator(on: Operation, asked: NewOperator) -> JsonObject:
    made = await on.control.add_operator(
        asked.name, seconds=asked.seconds, read_only=asked.read_only
    )
    return {
        "token": made.secret,
        "name": made.token.name,
        "read_only": made.token.read_only,
        "expires_at": _time(made.token.expires_at),
    }


@_verb("operators/list", Nothing, is_local=True)
async def _operators(on: Operation, _asked: Nothing) -> JsonObject:
    found = await on.store.read(operators.read)
    return {"operators": [asdict(each) for each in found]}


@_verb("operators/revoke", Operator, writes=True, is_local=True)
async def _revoke_operator(on: Operation, asked: Operator) -> JsonObject:
    await on.control.revoke_operator(asked.name)
    return {"revoked": asked.name}


async def _of_platform(on: Operation, asked: OnPlatform, kind: str) -> JsonObject | None:
    control = on.control
    status = await control.status(await control.principal(asked.instance))
    return next((row for row in status[kind] if row["platform"] == asked.platform), None)


async def _letters(on: Operation, asked: Letters) -> list[int]:
    """The numbers of the letters that are meant, all of which are there."""
    there = await on.store.read(lambda c: letter_numbers(c, asked.instance))
    if asked.numbers is None:
        return there
    wanted = sorted(set(asked.numbers))
    if missing := sorted(set(wanted) - set(there)):
        raise RelayError(
            Code.NOT_FOUND,
            f"the agent has no dead letter {missing[0]}",
            where=asked.instance,
            mend="`accord relay deadletters list` shows them",
        )
    return wanted


def _batches(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    return (numbers[start : start + _AT_ONCE] for start in range(0, len(numbers), _AT_ONCE))


def _one_of(asked: OneOfBoth) -> str | None:
    """The instance that is meant; None where it is a tenant."""
    if (asked.instance is None) == (asked.tenant is None):
        raise bad("name one instance, or one tenant")
    return asked.instance


def _time(milliseconds: int) -> str:
    return format_time(milliseconds / 1000)


def explanation_json(explained: Explanation) -> JsonObject:
    """What was decided about an event, as JSON."""
    event, decision = explained.recorded.event, explained.recorded.decision
    states = {each.instance: asdict(each) for each in explained.statuses}
    return {
        "event": explained.event,
        "event_id": event.event_id,
        "received_at": _time(explained.received_at),
        "trace_id": explained.trace_id,
        "platform": event.platform,
        "bot_id": event.bot_id,
        "scope_id": event.scope_id,
        "chat_id": event.chat_id,
        "author": event.author,
        "tenant": decision.tenant,
        "verdicts": [_verdict_json(each) for each in decision.verdicts],
        "candidates": [
            {
                "instance": each.instance,
                "delivers": each.delivers,
                "verdicts": [_verdict_json(verdict) for verdict in each.verdicts],
                "standing": states.get(each.instance),
            }
            for each in decision.candidates
        ],
        "deliveries": list(decision.deliveries),
        "later": [
            {
                "instance": each.instance,
                "decided_at": _time(each.decided_at),
                "outcome": each.outcome.value,
                "verdicts": [_verdict_json(verdict) for verdict in each.verdicts],
            }
            for each in explained.later
        ],
        "counted": explained.is_counted,
    }


def _verdict_json(verdict: GateVerdict) -> JsonObject:
    return {
        "layer": verdict.layer.value,
        "rule": verdict.rule,
        "passed": verdict.passed,
        "unknown": verdict.rule in UNKNOWN_RULES,
        "sentence": verdict.sentence,
    }


class OperatorRoutes:
    """The verbs over HTTP; `counts` are refused requests, for the metrics.

    A request changes something only if its token may, and the journal names the token's holder.
    """

    def __init__(
        self, control: Control, delivery: "Delivery", store: Storage, clock: Clock
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._control = control
        self._delivery = delivery
        self._store = store
        self._clock = clock
        settings = control.directory.settings
        self._by_address = _buckets(settings.operator_requests_per_minute)
        self._failed = _buckets(settings.operator_failures_per_minute)

    @property
    def routes(self) -> list[Route]:
        """The route of every verb, to be mounted at the root."""
        return [Route(f"{OPERATOR_ROUTE}/{{verb:path}}", self._answer, methods=["POST"])]

    async def _answer(self, request: HttpRequest) -> Response:
        name = request.path_params["verb"]
        try:
            return respond(200, await self._perform(request, name))
        except RelayError as error:
            refusal = error
        except StoreError as error:
            _log.error("the relay's store failed", path=request.url.path, reason=error.what)
            refusal = RelayError(
                Code.UNAVAILABLE, "the relay's store does not answer", mend="try again"
            )
        self.counts[f"operator_refused_{refusal.code.value}"] += 1
        _log.info("an operator was refused", verb=name[:64], code=refusal.code.value)
        body = {
            "error": refusal.code.value,
            "message": str(refusal),
            "what": refusal.what,
            "where": refusal.where,
            "mend": refusal.mend,
        }
        headers = {"www-authenticate": "Bearer"} if refusal.code is Code.UNAUTHORIZED else {}
        if isinstance(refusal, _TooManyError):
            headers = {"retry-after": str(refusal.seconds)}
        return respond(refusal.code.status, body, headers)

    async def _perform(self, request: HttpRequest, name: str) -> JsonObject:
        key, now = client_key(request), self._clock.monotonic()
        for buckets in (self._failed, self._by_address):
            if wait := math.ceil(buckets.wait(key, now)):
                raise _TooManyError(wait)
        self._by_address.take(key, now)
        try:
            holder = await self._authenticate(read_bearer(request))
        except RelayError:
            self._failed.take(key, now)
            raise
        verb = VERBS.get(name)
        if verb is None:
            raise RelayError(
                Code.NOT_FOUND,
                "this connector knows no such verb",
                mend="use a command line of the connector's version",
            )
        if verb.is_local:
            raise RelayError(
                Code.FORBIDDEN,
                "tokens of operators are made and revoked on the connector's own machine",
                mend="run the command there",
            )
        if verb.writes and holder.read_only:
            raise RelayError(
                Code.FORBIDDEN,
                "this operator's token may only read",
                mend="use one that was made without --read-only",
            )
        asked = read_request(verb, dict(await read_body(request)))
        control = self._control.acting_as(holder.by)
        operation = Operation(control, self._delivery, self._store, holder.by)
        answer = await verb.run(operation, asked)
        if verb.writes:
            _log.info("an operator changed something", operator=holder.name, verb=name)
        return answer

    async def _authenticate(self, bearer: str | None) -> OperatorToken:
        now = int(self._clock.now() * 1000)
        return await self._store.read(lambda c: operators.authenticate(c, bearer, now))


class _TooManyError(RelayError):
    """Too many requests, or too many wrong tokens, from one address."""

    def __init__(self, seconds: int) -> None:
        super().__init__(Code.RATE_LIMITED, "too many requests", mend=f"wait {seconds} seconds")
        self.seconds = seconds


def _buckets(per_minute: float) -> TokenBuckets:
    return TokenBuckets(per_minute / 60, _MOST_ADDRESSES, max(1.0, per_minute))
