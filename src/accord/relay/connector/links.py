"""Link codes, wrong tries, pending confirmations, bindings and chosen defaults in the store.

Codes are stored as keyed digests, compared in constant time and used once. A message is decided (by
`rules.links`) and carried out within one change.
"""

import hmac
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import delete, insert, select

from accord.relay.connector import policies, registry
from accord.relay.connector.settings import ControlSettings
from accord.relay.connector.store import ControlChange, is_user
from accord.relay.connector.tables import bindings, link_codes, link_pending, link_talks
from accord.relay.connector.vault import Keyring
from accord.relay.rules.links import LinkEffect, LinkFacts, decide_link
from accord.relay.rules.messages import LinkRequest


@dataclass(frozen=True, slots=True)
class LinkReply:
    """The bot's reply to an account-link message, which is never routed; an empty text is no reply.

    `rule` is the id of the rule that decided, for the journal.
    """

    text: str
    rule: str


@dataclass(frozen=True, slots=True)
class LinkCode:
    """A code to send to the bot; `expires_at` in milliseconds."""

    expires_at: int
    code: str = field(repr=False)


class LinkMessage(NamedTuple):
    """The author and the event of a message about linking."""

    platform: str
    user_id: str
    event: str


def offer(
    change: ControlChange, keyring: Keyring, instance: str, code: LinkCode, most: int
) -> None:
    """Store a code by which an account can be linked to the instance, and drop all but `most`."""
    registry.need(change.connection, instance)
    mine = link_codes.c.instance == instance
    change.connection.execute(delete(link_codes).where(mine, link_codes.c.expires_at <= change.now))
    out = (
        change.connection.execute(
            select(link_codes.c.digest).where(mine).order_by(link_codes.c.created_at.desc())
        )
        .scalars()
        .all()
    )
    for digest in out[most - 1 :]:
        change.connection.execute(delete(link_codes).where(link_codes.c.digest == digest))
    change.connection.execute(
        insert(link_codes).values(
            digest=keyring.digests(_normalise(code.code))[0],
            instance=instance,
            created_at=change.now,
            expires_at=code.expires_at,
        )
    )
    change.touch("codes")
    change.note("link.offered", instance=instance)


def _normalise(code: str) -> str:
    return code.replace("-", "")


def burn(change: ControlChange, digests: list[bytes]) -> int:
    """Cancel codes; how many of them were out."""
    gone = change.connection.execute(delete(link_codes).where(link_codes.c.digest.in_(digests)))
    if gone.rowcount:
        change.touch("codes")
        change.note("link.burned", codes=gone.rowcount)
    return int(gone.rowcount)


def handle_message(
    change: ControlChange,
    keyring: Keyring,
    settings: ControlSettings,
    request: LinkRequest,
    talk: LinkMessage,
) -> LinkReply:
    """Carry out a direct message about linking, once, and return the bot's reply."""
    platform, user_id = talk.platform, talk.user_id
    before = change.connection.execute(
        select(link_talks).where(*is_user(link_talks, talk.platform, talk.user_id))
    ).first()
    if before is not None and before.event == talk.event:
        return LinkReply(before.text, before.rule)
    tries, until = 0, change.now + settings.link_tries_seconds * 1000
    if before is not None and before.until > change.now:
        tries, until = before.tries, before.until
    digests = keyring.digests(request.code) if request.code else []
    # After too many wrong codes none is looked up any more.
    offered = None if tries >= settings.link_tries else _offered(change, digests)
    waiting = _waiting(change, platform, user_id)
    bound = _bound(change, platform, user_id)
    places = list(bound)
    default = policies.find_dm_default(change, platform, user_id)
    known = LinkFacts(
        has_code=bool(digests),
        offered=offered.name if offered else None,
        offered_is_bound=offered is not None and offered.instance in bound,
        waiting=waiting.name if waiting else None,
        bound=tuple(bound.values()),
        tries=tries,
        default=places.index(default) if default in bound else None,
        agent=request.agent,
    )
    decided = decide_link(request.command, known, settings.link_tries)
    match decided.effect:
        case LinkEffect.COUNT_TRY:
            tries += 1
        case LinkEffect.SPEND:
            burn(change, digests)
        case LinkEffect.ASK if offered is not None:
            burn(change, digests)
            _wait(change, platform, user_id, offered.instance, settings.link_seconds)
        case LinkEffect.BIND if waiting is not None:
            _drop(change, platform, user_id)
            bind(change, waiting, platform, user_id)
        case LinkEffect.DROP:
            _drop(change, platform, user_id)
        case LinkEffect.UNBIND:
            _drop(change, platform, user_id)
            unbind(change, platform, user_id)
        case LinkEffect.UNBIND_ONE if decided.agent is not None:
            unbind(change, platform, user_id, places[decided.agent])
        case LinkEffect.SET_DEFAULT if decided.agent is not None:
            chosen = registry.need(change.connection, places[decided.agent])
            policies.put_dm_default(change, platform, user_id, chosen.tenant, chosen.instance)
            change.note(
                "dm-default.chosen",
                tenant=chosen.tenant,
                instance=chosen.instance,
                platform=platform,
                user_id=user_id,
            )
        case _:
            pass
    reply = LinkReply(decided.text, decided.rule)
    _remember(change, talk, tries, until, reply)
    return reply


def bind(
    change: ControlChange, instance: registry.InstanceRecord, platform: str, user_id: str
) -> None:
    """Link an account to an instance; the first link sets where direct messages go."""
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
        change.touch("instance", instance.instance)
        change.note("link.bound", **values)
    policies.mend_dm_default(change, platform, user_id)


def unbind(change: ControlChange, platform: str, user_id: str, instance: str | None = None) -> int:
    """Remove the links of an account, or the one to an instance; how many there were."""
    where = [*is_user(bindings, platform, user_id)]
    if instance is not None:
        where.append(bindings.c.instance == instance)
    ended = change.connection.execute(select(bindings.c.instance).where(*where)).scalars().all()
    gone = change.connection.execute(delete(bindings).where(*where))
    if gone.rowcount:
        change.touch("user", platform, user_id)
        for each in ended:
            change.touch("instance", each)  # its grants by this owner no longer count
        change.note("link.unbound", platform=platform, user_id=user_id, instance=instance)
        policies.mend_dm_default(change, platform, user_id)
    return int(gone.rowcount)


def _offered(change: ControlChange, digests: list[bytes]) -> registry.InstanceRecord | None:
    found = None
    for row in change.connection.execute(
        select(link_codes).where(link_codes.c.digest.in_(digests))
    ):
        for digest in digests:
            if hmac.compare_digest(row.digest, digest) and change.now < row.expires_at:
                found = row.instance
    instance = registry.find(change.connection, found) if found else None
    return instance if instance is not None and instance.live else None


def _waiting(change: ControlChange, platform: str, user_id: str) -> registry.InstanceRecord | None:
    row = change.connection.execute(
        select(link_pending).where(*is_user(link_pending, platform, user_id))
    ).first()
    if row is None or row.expires_at <= change.now:
        return None
    instance = registry.find(change.connection, row.instance)
    return instance if instance is not None and instance.live else None


def _wait(change: ControlChange, platform: str, user_id: str, instance: str, seconds: int) -> None:
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


def _drop(change: ControlChange, platform: str, user_id: str) -> None:
    gone = change.connection.execute(
        delete(link_pending).where(*is_user(link_pending, platform, user_id))
    )
    if gone.rowcount:
        change.touch("user", platform, user_id)


def _bound(change: ControlChange, platform: str, user_id: str) -> dict[str, str]:
    """The instances that an account is linked to, with their names, the earliest link first."""
    rows = change.connection.execute(
        select(bindings.c.instance)
        .where(*is_user(bindings, platform, user_id))
        .order_by(bindings.c.created_at, bindings.c.instance)
    ).scalars()
    found = [registry.find(change.connection, instance) for instance in rows.all()]
    return {each.instance: each.name for each in found if each is not None}


def _remember(
    change: ControlChange, talk: LinkMessage, tries: int, until: int, reply: LinkReply
) -> None:
    change.connection.execute(
        delete(link_talks).where(*is_user(link_talks, talk.platform, talk.user_id))
    )
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
