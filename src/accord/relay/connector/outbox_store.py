"""The rows of the outbox: requests and their results, holding and ending actions, the journal.

Content is stored as it is, like the messages that wait in `buffer`: both lie in the same database,
which belongs to the operator alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, NamedTuple, Self

import orjson
from blake3 import blake3
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    bindparam,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from accord.kernel import identifiers
from accord.kernel.identifiers import Trace
from accord.relay.connector.directory import DeliveryContext
from accord.relay.connector.store import Principal, database_now, write_journal, write_note
from accord.relay.connector.tables import bindings, chats, is_waiting, messages, outbox, requests
from accord.relay.connector.vault import StoreSecret
from accord.relay.errors import Code, RelayError
from accord.relay.rules.egress import OutboxStep, is_due
from accord.relay.rules.frames import (
    Action,
    BadAction,
    Edit,
    FollowUp,
    Outcome,
    Result,
    read_action,
    write_action,
)
from accord.storage import JournalRecord

OUTBOUND_STREAM: Final = "relay.outbound"
USED: Final = "this requestId was used for another action"
Lane = tuple[str, str]
"""An instance and a chat of it, or a session."""

_MOST: Final = 500
_THIS = (requests.c.instance == bindparam("of"), requests.c.request_id == bindparam("id"))
_KNOWN = select(requests.c.digest, requests.c.result, requests.c.asked_at).where(*_THIS)
_FORGET = delete(requests).where(*_THIS)
_FINISH = update(requests).where(*_THIS).values(result=bindparam("written"))
_TWIN = (
    select(requests.c.request_id, requests.c.result)
    .where(
        requests.c.instance == bindparam("of"),
        requests.c.digest.in_(bindparam("same", expanding=True)),
        requests.c.unwritten_at >= bindparam("since"),
    )
    .order_by(requests.c.unwritten_at.desc())
    .limit(1)
)
_UNWRITTEN = update(requests).where(*_THIS).values(unwritten_at=bindparam("moment"))
_OWN = {
    "postgresql": postgresql.insert(messages).on_conflict_do_nothing(),
    "sqlite": sqlite.insert(messages).on_conflict_do_nothing(),
}
_STRANGER = (
    select(chats.c.user_id)
    .where(
        chats.c.instance == bindparam("of"),
        chats.c.platform == bindparam("platform"),
        chats.c.chat_id == bindparam("chat"),
        chats.c.user_id != "",
        ~exists().where(
            bindings.c.platform == chats.c.platform, bindings.c.user_id == chats.c.user_id
        ),
    )
    .limit(1)
)
_LANE = (outbox.c.instance == bindparam("of"), outbox.c.lane == bindparam("lane_of"), is_waiting)
_HEAD = select(outbox).where(*_LANE).order_by(outbox.c.number).limit(1).with_for_update()
_TAIL = select(outbox).where(*_LANE).order_by(outbox.c.number.desc()).limit(1)
_ahead = outbox.alias()
_is_first = ~(
    select(_ahead.c.number)
    .where(
        _ahead.c.instance == outbox.c.instance,
        _ahead.c.lane == outbox.c.lane,
        _ahead.c.number < outbox.c.number,
        _ahead.c.ended_at.is_(None),
    )
    .exists()
)
_is_due = or_(outbox.c.due_at <= bindparam("now"), outbox.c.due_at > bindparam("set_back"))
_DUE = (
    select(outbox.c.instance, outbox.c.lane)
    .where(is_waiting, _is_first, outbox.c.held_until <= bindparam("moment"), _is_due)
    .order_by(outbox.c.number)
    .limit(_MOST)
)
_FORMER = select(outbox.c.number, outbox.c.digest, outbox.c.ended_at).where(
    outbox.c.instance == bindparam("of"), outbox.c.request_id == bindparam("id")
)
_ROOM = select(func.count()).where(outbox.c.instance == bindparam("of"), is_waiting)


class RowState(Enum):
    """The state of an action in the outbox; the last three are dead letters."""

    QUEUED = "queued"
    SENDING = "sending"
    """Somebody performs it, or died doing so."""
    REFUSED = "refused"
    EXPIRED = "expired"
    UNKNOWN = "unknown"


_DEAD: Final = {
    OutboxStep.REFUSED: RowState.REFUSED,
    OutboxStep.EXPIRED: RowState.EXPIRED,
    OutboxStep.UNKNOWN: RowState.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class AskedAction:
    """An action with who asks for it, and the platform and bot that they name."""

    principal: Principal
    action: Action
    platform: str | None = None
    bot_id: str | None = None


@dataclass(frozen=True, slots=True)
class OutboundRequest:
    """An action as a gateway asked for it, `at` milliseconds since the epoch."""

    asked: AskedAction
    request_id: str
    at: int
    # By what a repeated action is recognised.
    digest: str

    @property
    def digests(self) -> tuple[str, str]:
        """The digest, and that of an older version, which needed no secret."""
        return self.digest, blake3(action_bytes(self.asked.action)).hexdigest()

    @property
    def key(self) -> str:
        """The idempotency key that a platform gets; unique among all instances."""
        return f"{self.asked.principal.instance}/{self.request_id}"


class Hold(NamedTuple):
    """The right of one process to perform an action.

    The number alone could by now be that of another action: a database may use it again.
    """

    number: int
    instance: str
    request_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """An action that this process holds; times in milliseconds."""

    number: int
    request: OutboundRequest
    lane: Lane
    attempts: int
    # The ids of its messages that are sent already.
    sent: tuple[str | None, ...]
    # When it was first tried of which nothing definite is known.
    tried_at: int | None
    epoch: int
    # Whether an earlier attempt may have sent it: it had no answer, or was not recorded.
    in_doubt: bool = False
    trace: Trace | None = None

    @property
    def asked(self) -> AskedAction:
        """The action and who asks for it."""
        return self.request.asked

    @property
    def created_at(self) -> int:
        """When it was taken."""
        return self.request.at

    @property
    def key(self) -> tuple[str, str]:
        """Its instance and request id."""
        return self.asked.principal.instance, self.request.request_id

    @property
    def hold(self) -> Hold:
        """By what this process holds it."""
        return Hold(self.number, *self.key, self.epoch)

    @property
    def idempotency_key(self) -> str:
        """The key of its first message."""
        return self.request.key


@dataclass(frozen=True, slots=True)
class OutboundNote:
    """What the journal records of an action besides its result."""

    platform: str
    rule: str
    source: str
    secret: StoreSecret
    trace_id: str | None = None


@dataclass(frozen=True, slots=True)
class OutboxChange:
    """Why and when actions are given up, retried or dropped; `by` None means the process itself."""

    id: str
    now: int
    source: str
    reason: str
    secret: StoreSecret
    by: str | None = None

    @classmethod
    def of(cls, context: DeliveryContext, reason: str, by: str | None = None) -> Self:
        """A change that this process makes now."""
        secret = context.directory.secret
        return cls(context.ids.new(), context.now(), context.name, reason, secret, by)


@dataclass(frozen=True, slots=True)
class AdmissionTerms:
    """Under which terms an action is taken; times in milliseconds."""

    holder: str
    held_ms: int
    # Requests that were asked before are forgotten.
    oldest: int
    # An equal action whose answer was lost since then counts as the same.
    repeats_since: int
    most_rows: int


@dataclass(frozen=True, slots=True)
class Admission:
    """What became of a request.

    Attributes:
        row: It is the first of its lane and held by this process.
        result: It has ended before, with this.
        refused: It was not taken.
        same_as: The id of an equal action whose answer was lost, instead of which it was asked.
        replaced: The request and message of an edit that it makes unnecessary.
        is_full: Too many actions of the instance wait.
    """

    row: OutboxRow | None = None
    result: Result | None = None
    refused: Result | None = None
    same_as: str | None = None
    replaced: tuple[str, str] | None = None
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class OutboxBacklog:
    """How many actions wait, how long the oldest has waited, and how many are dead letters."""

    rows: int = 0
    oldest_seconds: float = 0.0
    dead: int = 0


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """An action in the outbox without its content; times in milliseconds since the epoch."""

    number: int
    instance: str
    request_id: str
    tenant: str
    platform: str | None
    lane: str
    op: str
    state: str
    attempts: int
    created_at: int
    due_at: int
    error: str | None
    ended_at: int | None


def action_bytes(action: Action) -> bytes:
    """An action as it is compared and stored."""
    return orjson.dumps(write_action(action))


def lane_of(asked: AskedAction, chat_id: str | None = None) -> Lane:
    """The lane of an action; `chat_id` is where a follow-up shows, if that is known."""
    action = asked.action
    place = (chat_id or action.session_key) if isinstance(action, FollowUp) else action.chat_id
    return asked.principal.instance, place


def admit(
    connection: Connection,
    request: OutboundRequest,
    terms: AdmissionTerms,
    trace: str | None,
    *,
    lane: Lane | None = None,
) -> Admission:
    """Take an action into the outbox, unless it is known or too many wait.

    Without `lane` it is the one that the action names.
    """
    instance, digest = request.asked.principal.instance, request.digest
    this = {"of": instance, "id": request.request_id}
    known = connection.execute(_KNOWN, this).first()
    if known is not None and known.asked_at >= terms.oldest:
        if known.digest not in request.digests:
            return Admission(refused=_refused(USED))
        connection.execute(_UNWRITTEN, this | {"moment": None})
        return _known(connection, instance, request.request_id, known.result)
    if known is not None:
        connection.execute(_FORGET, this)  # also of what still waits: that is found below
    since = {"of": instance, "same": request.digests, "since": terms.repeats_since}
    twin = connection.execute(_TWIN, since).first()
    if twin is not None:
        own = {"of": instance, "id": twin.request_id}
        connection.execute(_UNWRITTEN, own | {"moment": None})
        found = _known(connection, instance, twin.request_id, twin.result)
        return Admission(result=found.result, same_as=twin.request_id)
    former = connection.execute(_FORMER, this).first()
    if former is not None and former.ended_at is None:
        # It is tried for longer than requests are remembered.
        is_same = former.digest in request.digests
        return Admission() if is_same else Admission(refused=_refused(USED))
    if connection.execute(_ROOM, {"of": instance}).scalar_one() >= terms.most_rows:
        return Admission(is_full=True)
    if former is not None:
        connection.execute(delete(outbox).where(outbox.c.number == former.number))
    values = {"instance": instance, "request_id": request.request_id, "digest": digest}
    connection.execute(insert(requests), values | {"result": None, "asked_at": request.at})
    lane = lane or lane_of(request.asked)
    tail = connection.execute(_TAIL, {"of": lane[0], "lane_of": lane[1]}).first()
    replaced, due_at = _replace_edit(connection, request, tail)
    is_first = tail is None
    now = database_now(connection)
    row = {
        **values,
        "tenant": request.asked.principal.tenant,
        "platform": request.asked.platform,
        "bot_id": request.asked.bot_id,
        "lane": lane[1],
        "op": request.asked.action.op,
        "body": orjson.dumps(write_action(request.asked.action)).decode(),
        "state": (RowState.SENDING if is_first else RowState.QUEUED).value,
        "attempts": 1 if is_first else 0,
        "sent": "[]",
        "created_at": request.at,
        "due_at": due_at,
        "tried_at": request.at if is_first else None,
        "holder": terms.holder if is_first else "",
        "epoch": 1 if is_first else 0,
        "held_until": now + terms.held_ms if is_first else 0,
        "traceparent": trace,
    }
    number = connection.execute(insert(outbox).returning(outbox.c.number), row).scalar_one()
    if not is_first:
        return Admission(replaced=replaced)
    held = OutboxRow(
        number, request, lane, 1, (), request.at, 1, trace=identifiers.parse_traceparent(trace)
    )
    return Admission(row=held, replaced=replaced)


def claim(
    connection: Connection, lane: Lane, holder: str, now: int, held_ms: int, longest_ms: int
) -> OutboxRow | None:
    """Hold the first action of a lane; None if there is none, it is not due or is held."""
    head = connection.execute(_HEAD, {"of": lane[0], "lane_of": lane[1]}).first()
    if head is None or not is_due(head.due_at, now, longest_ms):
        return None
    moment = database_now(connection)
    # Also what this process holds: it was handed over when it was admitted, or is lost in a crash.
    if head.held_until > moment:
        return None
    in_doubt = head.state == RowState.SENDING.value or head.tried_at is not None
    tried_at = now if head.tried_at is None else head.tried_at
    taken = {
        "state": RowState.SENDING.value,
        "attempts": head.attempts + 1,
        "tried_at": tried_at,
        "holder": holder,
        "epoch": head.epoch + 1,
        "held_until": moment + held_ms,
    }
    connection.execute(update(outbox).where(outbox.c.number == head.number).values(**taken))
    action = read_action(orjson.loads(head.body))
    assert not isinstance(action, BadAction)
    principal = Principal(head.tenant, head.instance, "", "secret")
    asked = AskedAction(principal, action, head.platform, head.bot_id)
    return OutboxRow(
        head.number,
        OutboundRequest(asked, head.request_id, head.created_at, head.digest),
        lane,
        head.attempts + 1,
        tuple(orjson.loads(head.sent)),
        tried_at,
        head.epoch + 1,
        in_doubt,
        identifiers.parse_traceparent(head.traceparent),
    )


def put_back(connection: Connection, row: OutboxRow) -> None:
    """Hold an action no longer that was held and not begun."""
    if _is_held(connection, row):
        # What an earlier attempt may have sent stays in doubt.
        tried_at = row.tried_at if row.in_doubt else None
        values = {"state": RowState.QUEUED.value, "tried_at": tried_at}
        _change(connection, row, holder="", held_until=0, attempts=row.attempts - 1, **values)


def put_off(connection: Connection, row: OutboxRow, due_at: int, result: Result) -> bool:
    """Try an action again later; False when another process holds it now."""
    if not _is_held(connection, row):
        return False
    # After a definite failure the next attempt is a first one, unless an earlier one had no answer:
    # then the platform's memory of its key is running out.
    is_doubtful = row.in_doubt or result.outcome is Outcome.UNKNOWN
    tried_at = row.tried_at if is_doubtful else None
    error, state = (result.error or "")[:500], RowState.QUEUED.value
    values = {"due_at": due_at, "error": error, "tried_at": tried_at, "state": state}
    _change(connection, row, holder="", held_until=0, **values)
    return True


def record_progress(connection: Connection, row: OutboxRow, now: int, held_ms: int) -> bool:
    """Store which messages of an action are sent; False when another process holds it now."""
    if not _is_held(connection, row):
        return False
    held_until = database_now(connection) + held_ms
    sent = orjson.dumps(row.sent).decode()
    _change(connection, row, sent=sent, tried_at=now, held_until=held_until)
    return True


def finish(
    connection: Connection,
    row: OutboxRow,
    step: OutboxStep,
    result: Result,
    note: OutboundNote,
    change: OutboxChange,
) -> bool:
    """Record the end of an action; False when another process holds it now."""
    if not _is_held(connection, row):
        return False
    if step is OutboxStep.SENT:
        connection.execute(delete(outbox).where(outbox.c.number == row.number))
    else:
        values = {"state": _DEAD[step].value, "error": change.reason[:500]}
        _change(connection, row, holder="", held_until=0, ended_at=change.now, **values)
    _store_result(connection, row.key, result)
    sent = [each for each in row.sent if each is not None]
    action = row.asked.action
    if sent and not isinstance(action, FollowUp):
        chat = {"platform": note.platform, "chat_id": action.chat_id}
        own = [
            chat | {"message_id": each, "instance": row.key[0], "sent_at": change.now}
            for each in sent
        ]
        connection.execute(_OWN[connection.dialect.name], own)
    journal_action(connection, row.request, result, sent, note)
    return True


def journal_action(
    connection: Connection,
    request: OutboundRequest,
    result: Result,
    sent: Sequence[str],
    note: OutboundNote,
) -> None:
    """Record an action in the journal."""
    asked, names = request.asked, note.secret.read(connection)
    chat_id = None if isinstance(asked.action, FollowUp) else asked.action.chat_id
    if chat_id is not None and _is_of_stranger(connection, asked.principal, note.platform, chat_id):
        chat_id = names.chat(note.platform, chat_id)
    body = {
        "tenant": asked.principal.tenant,
        "instance": asked.principal.instance,
        "platform": note.platform,
        "op": asked.action.op,
        "chat_id": chat_id,
        "rule": note.rule,
        "success": result.success,
        "messages": len(sent),
        "action_digest": names.digest(action_bytes(asked.action)),
    }
    if result.outcome is not None:
        body["outcome"] = result.outcome.value
    if note.trace_id is not None:
        body["trace_id"] = note.trace_id
    # Gateways may make request ids from what was written.
    name = names.digest(f"{request.key}/{request.at}".encode("utf-8", "surrogatepass"))
    text = orjson.dumps(body).decode()
    record = JournalRecord(OUTBOUND_STREAM, name, request.at, note.source, text)
    write_journal(connection, [record])


def _is_of_stranger(
    connection: Connection, principal: Principal, platform: str, chat_id: str
) -> bool:
    """Whether it is the direct chat of a person who is not linked."""
    this = {"of": principal.instance, "platform": platform, "chat": chat_id}
    return connection.execute(_STRANGER, this).first() is not None


def mark_unwritten(connection: Connection, instance: str, request_id: str, now: int) -> None:
    """Note that an answer could not be written."""
    connection.execute(_UNWRITTEN, {"of": instance, "id": request_id, "moment": now})


def renew(connection: Connection, holder: str, held: Sequence[Hold], held_ms: int) -> set[Hold]:
    """Hold on to actions; those that are still held."""
    until = database_now(connection) + held_ms
    columns = (outbox.c.number, outbox.c.instance, outbox.c.request_id, outbox.c.epoch)
    known = tuple_(*columns).in_(list(held)[:_MOST])
    changed = update(outbox).where(known, outbox.c.holder == holder, is_waiting)
    query = changed.values(held_until=until).returning(*columns)
    return {Hold(*row) for row in connection.execute(query)}


def due_lanes(connection: Connection, now: int, longest_ms: int) -> list[Lane]:
    """Lanes whose first action is due and held by nobody; no pause is longer than the given."""
    times = {"moment": database_now(connection), "now": now, "set_back": now + longest_ms}
    return [(row.instance, row.lane) for row in connection.execute(_DUE, times)]


def read_results(
    connection: Connection, keys: Sequence[tuple[str, str]]
) -> list[tuple[tuple[str, str], Result]]:
    """The results of those requests that have ended."""
    chosen = tuple_(requests.c.instance, requests.c.request_id).in_(list(keys)[:_MOST])
    query = select(requests).where(chosen, requests.c.result.is_not(None))
    return [
        ((row.instance, row.request_id), _read_result(row.result))
        for row in connection.execute(query)
    ]


def known_result(connection: Connection, request: OutboundRequest) -> Result | None:
    """How a request ended, or that it is queued; None if it was never taken."""
    instance, name = request.asked.principal.instance, request.request_id
    known = connection.execute(_KNOWN, {"of": instance, "id": name}).first()
    if known is None or known.digest not in request.digests:
        return None
    found = _known(connection, instance, name, known.result).result
    return Result(True, queued=True) if found is None else found


def backlog(connection: Connection, now: int) -> OutboxBacklog:
    """What waits."""
    query = select(func.count(), func.min(outbox.c.created_at)).where(is_waiting)
    rows, oldest = connection.execute(query).one()
    ended = select(func.count()).where(outbox.c.ended_at.is_not(None))
    dead = connection.execute(ended).scalar_one()
    return OutboxBacklog(rows, 0.0 if oldest is None else max(0, now - oldest) / 1000, dead)


def refuse_all(
    connection: Connection, instance: str, result: Result, change: OutboxChange
) -> list[tuple[str, Result]]:
    """Give up everything that waits of an instance; the requests with their results.

    Of what is performed just now, or may have been sent before, the outcome is unknown.
    """
    chosen = (outbox.c.instance == instance) & is_waiting
    waiting = connection.execute(select(outbox).where(chosen).with_for_update()).all()
    ended: list[tuple[str, Result]] = []
    for row in waiting:
        is_doubtful = _is_doubtful(row)
        told = replace(result, outcome=Outcome.UNKNOWN) if is_doubtful else result
        state = RowState.UNKNOWN if is_doubtful else RowState.REFUSED
        # A higher epoch keeps whoever performs it from recording its end.
        taken = {"holder": "", "held_until": 0, "epoch": row.epoch + 1}
        values = {"state": state.value, "error": change.reason, "ended_at": change.now, **taken}
        connection.execute(update(outbox).where(outbox.c.number == row.number).values(**values))
        _store_result(connection, (instance, row.request_id), told)
        rule = "outbox.unknown" if is_doubtful else "outbox.refused"
        _journal_row(connection, row, told, rule, change)
        ended.append((row.request_id, told))
    return ended


def list_entries(
    connection: Connection, instance: str | None, limit: int, *, dead: bool | None = None
) -> list[OutboxEntry]:
    """What waits in its order, then what was given up, the newest first; or one of both."""
    columns = [outbox.c[name] for name in OutboxEntry.__slots__]
    chosen: ColumnElement[bool] = true() if instance is None else outbox.c.instance == instance
    found: list[OutboxEntry] = []
    for is_dead in (False, True) if dead is None else (dead,):
        order = outbox.c.ended_at.desc() if is_dead else outbox.c.number
        state = outbox.c.ended_at.is_not(None) if is_dead else is_waiting
        query = select(*columns).where(chosen, state).order_by(order).limit(limit - len(found))
        found += [OutboxEntry(*row) for row in connection.execute(query)]
    return found


def retry(connection: Connection, numbers: Sequence[int], change: OutboxChange) -> list[int]:
    """Try actions again now, also given up ones; those that there are and nobody performs."""
    done: list[int] = []
    for row in _chosen(connection, numbers):
        values: dict[str, Any] = {"due_at": change.now, "holder": "", "held_until": 0}
        if row.ended_at is not None:
            values |= {"state": RowState.QUEUED.value, "attempts": 0, "tried_at": None}
            values |= {"created_at": change.now, "ended_at": None}
            this = {"of": row.instance, "id": row.request_id}
            connection.execute(_FINISH, this | {"written": None})
        connection.execute(update(outbox).where(outbox.c.number == row.number).values(**values))
        done.append(row.number)
    _note(connection, "outbox.retried", done, change)
    return done


def drop(connection: Connection, numbers: Sequence[int], change: OutboxChange) -> list[int]:
    """Delete actions for good; those that there were and nobody performs."""
    dropped = _refused("the operator has dropped it")
    done: list[int] = []
    for row in _chosen(connection, numbers):
        connection.execute(delete(outbox).where(outbox.c.number == row.number))
        if row.ended_at is None:
            is_doubtful = _is_doubtful(row)
            result = replace(dropped, outcome=Outcome.UNKNOWN) if is_doubtful else dropped
            _store_result(connection, (row.instance, row.request_id), result)
            _journal_row(connection, row, result, "outbox.dropped", change)
        done.append(row.number)
    _note(connection, "outbox.dropped", done, change)
    return done


def require_numbers(connection: Connection, numbers: Sequence[int]) -> None:
    """Raise RelayError unless there are actions of all these numbers."""
    there = set(
        connection.execute(
            select(outbox.c.number).where(outbox.c.number.in_(list(numbers)))
        ).scalars()
    )
    if missing := sorted(set(numbers) - there):
        raise RelayError(
            Code.NOT_FOUND,
            f"there is no action {missing[0]} in the outbox",
            mend="`accord relay outbox list` shows them",
        )


def _known(
    connection: Connection, instance: str, request_id: str, written: str | None
) -> Admission:
    if written is not None:
        return Admission(result=_read_result(written))
    is_this = (outbox.c.instance == instance) & (outbox.c.request_id == request_id) & is_waiting
    if connection.execute(select(outbox.c.number).where(is_this).limit(1)).first() is None:
        # An older version performed it and did not record what came of it.
        unknown = Result(False, error="outcome unknown", outcome=Outcome.UNKNOWN)
        return Admission(result=unknown)
    return Admission()


def _replace_edit(
    connection: Connection, request: OutboundRequest, tail: Row[Any] | None
) -> tuple[tuple[str, str] | None, int]:
    """Drop the last action of a lane if it is an earlier edit of the same message.

    What it was, and when the new one is due: a rate limit holds for both.
    """
    action = request.asked.action
    if tail is None or not isinstance(action, Edit) or tail.op != Edit.op:
        return None, request.at
    if tail.state != RowState.QUEUED.value:
        return None, request.at
    earlier = read_action(orjson.loads(tail.body))
    if not isinstance(earlier, Edit) or earlier.message_id != action.message_id:
        return None, request.at
    # It stays the row of its lane, so the number of the later edit is behind nothing new.
    connection.execute(delete(outbox).where(outbox.c.number == tail.number))
    done = Result(True, earlier.message_id)
    _store_result(connection, (tail.instance, tail.request_id), done)
    return (tail.request_id, earlier.message_id), tail.due_at


def _is_held(connection: Connection, row: OutboxRow) -> bool:
    is_this = (outbox.c.instance == row.key[0]) & (outbox.c.request_id == row.key[1])
    query = select(outbox.c.epoch).where(outbox.c.number == row.number, is_this, is_waiting)
    return connection.execute(query.with_for_update()).scalar() == row.epoch


def _is_doubtful(row: Row[Any]) -> bool:
    """Whether a stored action may have been sent."""
    return row.state == RowState.SENDING.value or row.tried_at is not None


def _change(connection: Connection, row: OutboxRow, **values: Any) -> None:
    connection.execute(update(outbox).where(outbox.c.number == row.number).values(**values))


def _store_result(connection: Connection, key: tuple[str, str], result: Result) -> None:
    written = orjson.dumps(result.to_dict()).decode()
    connection.execute(_FINISH, {"of": key[0], "id": key[1], "written": written})


def _read_result(written: str) -> Result:
    return Result.from_dict(orjson.loads(written))


def _refused(why: str) -> Result:
    return Result(False, error=why, outcome=Outcome.PERMANENT)


def _chosen(connection: Connection, numbers: Sequence[int]) -> Iterator[Row[Any]]:
    """The rows of these numbers that nobody performs now."""
    now = database_now(connection)
    query = select(outbox).where(outbox.c.number.in_(list(numbers))).with_for_update()
    for row in connection.execute(query.order_by(outbox.c.number)).all():
        if row.ended_at is not None or not row.holder or row.held_until <= now:
            yield row


def _journal_row(
    connection: Connection, row: Row[Any], result: Result, rule: str, change: OutboxChange
) -> None:
    action = read_action(orjson.loads(row.body))
    assert not isinstance(action, BadAction)
    principal = Principal(row.tenant, row.instance, "", "secret")
    asked = AskedAction(principal, action, row.platform, row.bot_id)
    request = OutboundRequest(asked, row.request_id, row.created_at, row.digest)
    note = OutboundNote(row.platform or "", rule, change.source, change.secret)
    journal_action(connection, request, result, [], note)


def _note(
    connection: Connection, action: str, numbers: Sequence[int], change: OutboxChange
) -> None:
    if numbers:
        by = change.by or change.source
        write_note(connection, change.id, change.now, by, action, actions=len(numbers))
