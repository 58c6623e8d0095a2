"""Link codes and bindings in the store: what the pure steps of `linking` read and do.

Owns codes (kept as keyed digests, compared in constant time, spent once), wrong tries, waiting
confirmations and bindings. A message is decided and done within one change.
"""

import hmac
from typing import Final, NamedTuple

from sqlalchemy import ColumnElement, delete, insert, select

from accord.relay.connector.control import policies, records
from accord.relay.connector.control.changes import Change
from accord.relay.connector.control.directory import LinkReply
from accord.relay.connector.control.keyring import Keyring
from accord.relay.connector.control.linking import Effect, Known, step
from accord.relay.connector.control.settings import ControlSettings
from accord.relay.connector.control.tables import (
    bindings,
    link_codes,
    link_pending,
    link_talks,
)
from accord.relay.gate.linking import LinkRequest

MOST_CODES: Final = 5
"""How many codes of one instance can be out at once; a further one replaces the oldest."""


class Talk(NamedTuple):
    """Somebody who talks to the bot, and the event in which that happened."""

    platform: str
    user_id: str
    event: str


def offer(change: Change, keyring: Keyring, instance: str, code: str, until: int) -> None:
    """Let whoever sends this code link an account to the instance."""
    records.need(change.connection, instance)
    mine = link_codes.c.instance == instance
    change.connection.execute(delete(link_codes).where(mine, link_codes.c.expires_at <= change.now))
    out = (
        change.connection.execute(
            select(link_codes.c.digest).where(mine).order_by(link_codes.c.created_at.desc())
        )
        .scalars()
        .all()
    )
    for digest in out[MOST_CODES - 1 :]:
        change.connection.execute(delete(link_codes).where(link_codes.c.digest == digest))
    change.connection.execute(
        insert(link_codes).values(
            digest=keyring.digests(spell(code))[0],
            instance=instance,
            created_at=change.now,
            expires_at=until,
        )
    )
    change.touch("codes")
    change.note("link.offered", instance=instance)


def spell(code: str) -> str:
    """The one spelling under which a code is kept."""
    return code.replace("-", "")


def burn(change: Change, digests: list[bytes]) -> int:
    """Let codes be used no more; how many of them were out."""
    gone = change.connection.execute(delete(link_codes).where(link_codes.c.digest.in_(digests)))
    if gone.rowcount:
        change.touch("codes")
        change.note("link.burned", codes=gone.rowcount)
    return int(gone.rowcount)


def take(
    change: Change,
    keyring: Keyring,
    settings: ControlSettings,
    request: LinkRequest,
    talk: Talk,
) -> LinkReply:
    """Do what a direct message about linking asks for, once, and say what the bot answers."""
    platform, user_id = talk.platform, talk.user_id
    before = change.connection.execute(select(link_talks).where(*_of(talk))).first()
    if before is not None and before.event == talk.event:
        return LinkReply(before.text, before.rule)
    tries, until = 0, change.now + settings.link_tries_seconds * 1000
    if before is not None and before.until > change.now:
        tries, until = before.tries, before.until
    digests = keyring.digests(request.code) if request.code else []
    # Whoever has guessed too often does not even get the code looked up.
    offered = None if tries >= settings.link_tries else _offered(change, digests)
    waiting = _waiting(change, platform, user_id)
    bound = _bound(change, platform, user_id)
    known = Known(
        has_code=bool(digests),
        offered=offered.name if offered else None,
        offered_is_bound=offered is not None and offered.instance in bound,
        waiting=waiting.name if waiting else None,
        bound=tuple(bound.values()),
        tries=tries,
    )
    decided = step(request.command, known, settings.link_tries)
    match decided.effect:
        case Effect.COUNT_TRY:
            tries += 1
        case Effect.SPEND:
            burn(change, digests)
        case Effect.ASK if offered is not None:
            burn(change, digests)
            _wait(change, platform, user_id, offered.instance, settings.link_seconds)
        case Effect.BIND if waiting is not None:
            _drop(change, platform, user_id)
            bind(change, waiting, platform, user_id)
        case Effect.DROP:
            _drop(change, platform, user_id)
        case Effect.UNBIND:
            _drop(change, platform, user_id)
            unbind(change, platform, user_id)
        case _:
            pass
    reply = LinkReply(decided.text, decided.rule)
    _remember(change, talk, tries, until, reply)
    return reply


def bind(change: Change, instance: records.Instance, platform: str, user_id: str) -> None:
    """Link an account to an instance; the first link decides where direct messages go."""
    values = {
        "tenant": instance.tenant,
        "platform": platform,
        "user_id": user_id,
        "instance": instance.instance,
    }
    there = change.connection.execute(
        select(bindings.c.instance).where(
            *(bindings.c[name] == value for name, value in values.items())
        )
    ).first()
    if there is None:
        change.connection.execute(insert(bindings).values(**values, created_at=change.now))
        change.touch("user", platform, user_id)
        change.note("link.bound", **values)
    policies.mend_dm_default(change, platform, user_id)


def unbind(change: Change, platform: str, user_id: str, instance: str | None = None) -> int:
    """Undo the links of an account, or the one to an instance; how many there were."""
    where = [bindings.c.platform == platform, bindings.c.user_id == user_id]
    if instance is not None:
        where.append(bindings.c.instance == instance)
    gone = change.connection.execute(delete(bindings).where(*where))
    if gone.rowcount:
        change.touch("user", platform, user_id)
        change.note("link.unbound", platform=platform, user_id=user_id, instance=instance)
        policies.mend_dm_default(change, platform, user_id)
    return int(gone.rowcount)


def _offered(change: Change, digests: list[bytes]) -> records.Instance | None:
    found = None
    for row in change.connection.execute(
        select(link_codes).where(link_codes.c.digest.in_(digests))
    ):
        for digest in digests:
            if hmac.compare_digest(row.digest, digest) and change.now < row.expires_at:
                found = row.instance
    instance = records.find(change.connection, found) if found else None
    return instance if instance is not None and instance.live else None


def _waiting(change: Change, platform: str, user_id: str) -> records.Instance | None:
    row = change.connection.execute(
        select(link_pending).where(
            link_pending.c.platform == platform, link_pending.c.user_id == user_id
        )
    ).first()
    if row is None or row.expires_at <= change.now:
        return None
    instance = records.find(change.connection, row.instance)
    return instance if instance is not None and instance.live else None


def _wait(change: Change, platform: str, user_id: str, instance: str, seconds: int) -> None:
    _drop(change, platform, user_id)
    change.connection.execute(
        insert(link_pending).values(
            platform=platform,
            user_id=user_id,
            instance=instance,
            expires_at=change.now + seconds * 1000,
        )
    )
    change.touch("user", platform, user_id)


def _drop(change: Change, platform: str, user_id: str) -> None:
    gone = change.connection.execute(
        delete(link_pending).where(
            link_pending.c.platform == platform, link_pending.c.user_id == user_id
        )
    )
    if gone.rowcount:
        change.touch("user", platform, user_id)


def _bound(change: Change, platform: str, user_id: str) -> dict[str, str]:
    """The instances that an account is linked to, with their names."""
    rows = change.connection.execute(
        select(bindings.c.instance)
        .where(bindings.c.platform == platform, bindings.c.user_id == user_id)
        .order_by(bindings.c.created_at, bindings.c.instance)
    ).scalars()
    found = [records.find(change.connection, instance) for instance in rows.all()]
    return {each.instance: each.name for each in found if each is not None}


def _remember(change: Change, talk: Talk, tries: int, until: int, reply: LinkReply) -> None:
    change.connection.execute(delete(link_talks).where(*_of(talk)))
    change.connection.execute(
        insert(link_talks).values(
            platform=talk.platform,
            user_id=talk.user_id,
            tries=tries,
            until=until,
            event=talk.event,
            rule=reply.rule,
            text=reply.text,
        )
    )
    change.touch("user", talk.platform, talk.user_id)


def _of(talk: Talk) -> tuple[ColumnElement[bool], ...]:
    return link_talks.c.platform == talk.platform, link_talks.c.user_id == talk.user_id
