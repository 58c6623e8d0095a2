"""Tenants, instances and their secrets: enrolment, provisioning, revocation and suspension.

An instance is an agent; it belongs to one tenant and has one gateway. An enrolment token is used
once. Repeated provisioning returns the live secret, to the same gateway only. A revoked instance
keeps its record, so that its secret is recognised and refused. Refusals are `RelayError`s.
"""

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import (
    Connection,
    RowMapping,
    Select,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)

from accord.kernel import canonical
from accord.kernel.confusables import skeleton
from accord.relay.connector import policies
from accord.relay.connector.settings import ControlSettings
from accord.relay.connector.store import ControlChange
from accord.relay.connector.tables import (
    bindings,
    chat_profiles,
    dm_defaults,
    enrolments,
    gateway_secrets,
    grants,
    identities,
    instances,
    link_codes,
    link_pending,
    open_places,
    principals,
    relevance,
    route_claims,
    stranger_rates,
    tenants,
    vault,
)
from accord.relay.connector.vault import Box, Keyring
from accord.relay.errors import Code, RelayError

ENROLMENT_PREFIX: Final = "enrol_"
# For how long an expired token is answered as expired rather than unknown.
REMEMBERED_MS: Final = 7 * 86_400_000
_SECRET_BYTES: Final = 32
_MOST_REFUSED: Final = 16
_MOST_SECRETS: Final = 8


@dataclass(frozen=True, slots=True)
class InstanceRecord:
    """What is stored of one instance; times in milliseconds since the epoch."""

    instance: str
    tenant: str
    gateway_id: str
    name: str
    # `enrolled` or `managed`.
    origin: str
    dialect: str
    wake_url: str | None
    created_at: int
    revoked_at: int | None
    # Whether the operator revoked it, so that it cannot enrol again by itself.
    barred: bool
    # Whether its whole tenant is suspended.
    suspended: bool
    # How its gateway keys sessions besides the dialect, and which hellos are refused, as JSON.
    session_rules: str | None = None
    refused: str | None = None
    # Whether the operator set the wake URL, so that its gateway cannot replace it.
    wake_pinned: bool = False
    # How the operator says that its gateway keys sessions, as JSON.
    session_override: str | None = None

    @property
    def live(self) -> bool:
        """Whether it is neither revoked nor suspended."""
        return self.revoked_at is None and not self.suspended


@dataclass(frozen=True, slots=True)
class IssuedCredentials:
    """What a gateway gets when it enrols or is provisioned.

    Secret and delivery key are empty for a caller that has not proved to be the instance.
    """

    tenant: str
    instance: str
    gateway_id: str
    secret: str = field(repr=False)
    delivery_key: str = field(repr=False)
    route_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ManagedClaims:
    """The claims of a verified managed token; `issued_at` in seconds since the epoch."""

    tenant: str
    instance: str
    issued_at: int


@dataclass(frozen=True, slots=True)
class ProvisionRequest:
    """A managed gateway's request for its secret."""

    gateway_id: str
    platform: str
    bot_id: str
    route_keys: tuple[str, ...] = ()
    wake_url: str | None = None


@dataclass(frozen=True, slots=True)
class EnrolmentToken:
    """An enrolment token for whoever runs the gateway; `expires_at` in milliseconds."""

    tenant: str
    instance: str
    expires_at: int
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RotatedSecret:
    """A new secret, and until when (in milliseconds) the old one is valid."""

    old_until: int
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class LinkedAccount:
    """An account and an agent of its person; `is_default` where its direct messages go there."""

    platform: str
    user: str
    tenant: str
    instance: str
    created_at: int
    is_default: bool


@dataclass(frozen=True, slots=True)
class MintedToken:
    """An enrolment token without its value; times in milliseconds, `used_at` None if unused."""

    tenant: str
    instance: str
    name: str
    created_at: int
    expires_at: int
    used_at: int | None


def find(connection: Connection, instance: str) -> InstanceRecord | None:
    """The record of an instance."""
    return _first(connection, _BY_NAME, instance)


def find_by_gateway(connection: Connection, gateway_id: str) -> InstanceRecord | None:
    """The record of the instance that a gateway speaks for."""
    return _first(connection, _BY_GATEWAY, gateway_id)


def list_instances(connection: Connection, tenant: str | None = None) -> list[InstanceRecord]:
    """Every record, or those of one tenant."""
    where = () if tenant is None else (instances.c.tenant == tenant,)
    rows = connection.execute(_SELECT.where(*where).order_by(instances.c.instance))
    return [_instance(row) for row in rows.mappings()]


def unknown(instance: str) -> RelayError:
    """The error for an unknown instance."""
    return RelayError(
        Code.NOT_FOUND,
        f"there is no instance {instance!r}",
        mend="`accord relay instances` lists them",
    )


def need(connection: Connection, instance: str) -> InstanceRecord:
    """The record of a live instance."""
    found = find(connection, instance)
    if found is None:
        raise unknown(instance)
    if not found.live:
        raise RelayError(Code.FORBIDDEN, f"the instance {instance!r} is revoked or switched off")
    return found


def ensure_tenant(change: ControlChange, keyring: Keyring, tenant: str) -> str:
    """Make the tenant where it is missing, and return its delivery key."""
    row = (
        change.connection.execute(select(tenants).where(tenants.c.tenant == tenant))
        .mappings()
        .first()
    )
    if row is not None:
        if row["suspended_at"] is not None:
            raise RelayError(Code.FORBIDDEN, "the tenant is switched off")
        return keyring.open(Box(row["key_id"], row["box"]), "tenant", tenant)
    delivery_key = secrets.token_urlsafe(_SECRET_BYTES)
    box = keyring.close(delivery_key, "tenant", tenant)
    change.connection.execute(
        insert(tenants).values(
            tenant=tenant, key_id=box.key_id, box=box.data, created_at=change.now
        )
    )
    change.note("tenant.made", tenant=tenant)
    return delivery_key


def put(
    change: ControlChange,
    *,
    instance: str,
    tenant: str,
    gateway_id: str,
    name: str,
    origin: str,
    wake_url: str | None,
    before: InstanceRecord | None,
) -> None:
    """Insert the record of an instance, or update the one `before`.

    A wake URL that the operator set stays.
    """
    if before is not None and before.wake_pinned:
        wake_url = before.wake_url
    values = {
        "tenant": tenant,
        "gateway_id": gateway_id,
        "name": name,
        "origin": origin,
        "wake_url": wake_url,
        "revoked_at": None,
        "barred": 0,
    }
    if before is None:
        change.connection.execute(
            insert(instances).values(instance=instance, dialect="", created_at=change.now, **values)
        )
    else:
        change.connection.execute(
            update(instances).where(instances.c.instance == instance).values(**values)
        )
        change.touch("gateway", before.gateway_id)
    change.touch("instance", instance)
    change.touch("gateway", gateway_id)


def secrets_of(connection: Connection, keyring: Keyring, instance: str, now: int) -> list[str]:
    """The valid secrets of an instance's gateway, the newest first."""
    rows = connection.execute(
        select(gateway_secrets)
        .where(
            gateway_secrets.c.instance == instance,
            gateway_secrets.c.expires_at.is_(None) | (gateway_secrets.c.expires_at > now),
        )
        .order_by(gateway_secrets.c.expires_at.is_(None).desc(), gateway_secrets.c.id.desc())
    ).mappings()
    return [keyring.open(Box(row["key_id"], row["box"]), "secret", instance) for row in rows]


def issue(
    change: ControlChange,
    keyring: Keyring,
    instance: str,
    secret_id: str,
    until: int | None = None,
) -> str:
    """Give an instance a new secret, and return it; it ends at `until` unless it is confirmed."""
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    box = keyring.close(secret, "secret", instance)
    change.connection.execute(
        insert(gateway_secrets).values(
            id=secret_id,
            instance=instance,
            key_id=box.key_id,
            box=box.data,
            created_at=change.now,
            expires_at=until,
        )
    )
    return secret


def confirm(change: ControlChange, instance: str, secret_id: str, until: int) -> bool:
    """Make a prepared secret the one of an instance; False when it is already."""
    mine = (gateway_secrets.c.instance == instance, gateway_secrets.c.id == secret_id)
    row = change.connection.execute(select(gateway_secrets).where(*mine)).mappings().first()
    if row is None or (row["expires_at"] is not None and row["expires_at"] <= change.now):
        raise RelayError(
            Code.NOT_FOUND, "no such secret waits for its confirmation", mend="rotate again"
        )
    if row["expires_at"] is None:
        return False
    retire(change, instance, until)
    change.connection.execute(update(gateway_secrets).where(*mine).values(expires_at=None))
    return True


def drop_expired_secrets(change: ControlChange, instance: str) -> None:
    """Delete the secrets of an instance that are no longer good; refuse to keep too many."""
    mine = gateway_secrets.c.instance == instance
    change.connection.execute(
        delete(gateway_secrets).where(mine, gateway_secrets.c.expires_at <= change.now)
    )
    left = change.connection.execute(
        select(func.count()).select_from(gateway_secrets).where(mine)
    ).scalar_one()
    if left >= _MOST_SECRETS:
        raise RelayError(
            Code.CONFLICT,
            f"the gateway has {left} secrets that are still good",
            mend="wait until the older ones have expired",
        )


def retire(change: ControlChange, instance: str, until: int | None) -> None:
    """Let an instance's secrets expire at a time in milliseconds, or delete them if None.

    Those that expire earlier still do.
    """
    mine = gateway_secrets.c.instance == instance
    if until is None:
        change.connection.execute(delete(gateway_secrets).where(mine))
        return
    change.connection.execute(
        delete(gateway_secrets).where(mine, gateway_secrets.c.expires_at <= change.now)
    )
    change.connection.execute(
        update(gateway_secrets)
        .where(
            mine, gateway_secrets.c.expires_at.is_(None) | (gateway_secrets.c.expires_at > until)
        )
        .values(expires_at=until)
    )


def refused_hellos(record: InstanceRecord) -> list[dict[str, str]]:
    """The hellos of an instance that were refused lately: platform, bot id and reason."""
    return [] if record.refused is None else list(canonical.decode(record.refused))


def note_hello(
    change: ControlChange, instance: str, platform: str, bot_id: str, reason: str | None
) -> None:
    """Record that a hello was refused, or, without a reason, that it is no longer."""
    record = need(change.connection, instance)
    known = refused_hellos(record)
    kept = [each for each in known if (each["platform"], each["botId"]) != (platform, bot_id)]
    if reason is not None:
        kept.append({"platform": platform, "botId": bot_id, "reason": reason})
    kept = kept[-_MOST_REFUSED:]
    if kept == known:
        return
    written = canonical.encode(kept).decode() if kept else None
    change.connection.execute(
        update(instances).where(instances.c.instance == instance).values(refused=written)
    )
    change.touch("instance", instance)


def set_wake_url(
    change: ControlChange, instance: str, url: str | None, *, by_operator: bool = False
) -> bool:
    """Set or clear the URL by which an instance is woken; False where the operator's stays.

    What the operator sets, no gateway replaces; what the operator clears, a gateway may set.
    """
    record = need(change.connection, instance)
    if record.wake_pinned and not by_operator:
        return False
    is_pinned = by_operator and url is not None
    if (record.wake_url, record.wake_pinned) == (url, is_pinned):
        return True
    change.connection.execute(
        update(instances)
        .where(instances.c.instance == instance)
        .values(wake_url=url, wake_pinned=int(is_pinned))
    )
    change.touch("instance", instance)
    # The URL itself may hold a secret.
    action = "wake-url.cleared" if url is None else "wake-url.set"
    change.note(action, tenant=record.tenant, instance=instance)
    return True


def front(change: ControlChange, instance: str, platform: str, bot_id: str, most: int) -> None:
    """Store through which bot an instance speaks; it has up to `most` of them."""
    known = change.connection.execute(
        select(identities.c.platform, identities.c.bot_id).where(identities.c.instance == instance)
    )
    mine = {(row.platform, row.bot_id) for row in known}
    if (platform, bot_id) in mine:
        return
    if len(mine) >= most:
        raise RelayError(Code.CONFLICT, f"an instance fronts at most {most} bots")
    change.connection.execute(
        insert(identities).values(instance=instance, platform=platform, bot_id=bot_id)
    )
    change.touch("user", platform, bot_id)
    change.touch("instance", instance)


_SELECT = select(instances, tenants.c.suspended_at).join(
    tenants, tenants.c.tenant == instances.c.tenant
)
_BY_NAME = _SELECT.where(instances.c.instance == bindparam("of"))
_BY_GATEWAY = _SELECT.where(instances.c.gateway_id == bindparam("of"))


def _first(connection: Connection, query: Select[Any], of: str) -> InstanceRecord | None:
    row = connection.execute(query, {"of": of}).mappings().first()
    return None if row is None else _instance(row)


def _instance(values: RowMapping) -> InstanceRecord:
    known = {name: values[name] for name in InstanceRecord.__slots__ if name != "suspended"}
    for flag in ("barred", "wake_pinned"):
        known[flag] = bool(known[flag])
    return InstanceRecord(**known, suspended=values["suspended_at"] is not None)


def mint(
    change: ControlChange, token: str, tenant: str, instance: str, name: str, until: int
) -> None:
    """Store a token by which one gateway can enrol for the instance."""
    before = find(change.connection, instance)
    if before is not None and before.tenant != tenant:
        raise RelayError(
            Code.CONFLICT,
            f"the instance {instance!r} belongs to another tenant",
            mend="choose another name for the instance",
        )
    _refuse_lookalike(change, instance, name)
    change.connection.execute(
        delete(enrolments).where(enrolments.c.expires_at <= change.now - REMEMBERED_MS)
    )
    change.connection.execute(
        insert(enrolments).values(
            digest=_digest(token),
            tenant=tenant,
            instance=instance,
            name=name,
            created_at=change.now,
            expires_at=until,
        )
    )
    change.note("token.minted", tenant=tenant, instance=instance)


def enrol(
    change: ControlChange,
    keyring: Keyring,
    token: str,
    gateway_id: str,
    wake_url: str | None,
    secret_id: str,
) -> IssuedCredentials:
    """Use a token: its instance gets this gateway and a new secret; older ones end."""
    digest = _digest(token)
    row = (
        change.connection.execute(select(enrolments).where(enrolments.c.digest == digest))
        .mappings()
        .first()
    )
    if row is None or row["used_at"] is not None:
        raise RelayError(
            Code.UNAUTHORIZED,
            "this enrolment token is not known, or was used already",
            mend="ask the operator for a new one",
        )
    if row["expires_at"] <= change.now:
        raise RelayError(
            Code.EXPIRED, "this enrolment token has expired", mend="ask the operator for a new one"
        )
    tenant, instance = row["tenant"], row["instance"]
    _refuse_taken(change, gateway_id, instance)
    before = find(change.connection, instance)
    if before is not None and before.tenant != tenant:
        raise RelayError(Code.CONFLICT, "the instance belongs to another tenant now")
    if before is not None and before.barred:
        raise RelayError(Code.FORBIDDEN, "the operator has revoked this instance")
    delivery_key = ensure_tenant(change, keyring, tenant)
    put(
        change,
        instance=instance,
        tenant=tenant,
        gateway_id=gateway_id,
        name=row["name"],
        origin="enrolled",
        wake_url=wake_url,
        before=before,
    )
    retire(change, instance, None)
    secret = issue(change, keyring, instance, secret_id)
    change.connection.execute(
        update(enrolments).where(enrolments.c.digest == digest).values(used_at=change.now)
    )
    change.note("gateway.enrolled", tenant=tenant, instance=instance, gateway_id=gateway_id)
    return IssuedCredentials(tenant, instance, gateway_id, secret, delivery_key)


def provision(
    change: ControlChange,
    keyring: Keyring,
    claims: ManagedClaims,
    asked: ProvisionRequest,
    secret_id: str,
    settings: ControlSettings,
) -> IssuedCredentials:
    """Give a managed gateway its secret: a new one the first time, the live one afterwards.

    A token of another instance of the same tenant gets no secret; the routes are bound anyway.
    """
    holder = find_by_gateway(change.connection, asked.gateway_id)
    if holder is not None and holder.instance != claims.instance and holder.live:
        return _bind_routes_only(change, holder, claims, asked, settings.route_keys)
    _refuse_taken(change, asked.gateway_id, claims.instance)
    before = find(change.connection, claims.instance)
    if before is not None:
        _refuse_mismatch(before, claims, asked)
    delivery_key = ensure_tenant(change, keyring, claims.tenant)
    wake_url = asked.wake_url
    secret: str | None = None
    if before is not None and before.revoked_at is None:
        wake_url = before.wake_url if before.wake_pinned else wake_url or before.wake_url
        secret = next(
            iter(secrets_of(change.connection, keyring, before.instance, change.now)), None
        )
    if before is None or before.revoked_at is not None or wake_url != before.wake_url:
        put(
            change,
            instance=claims.instance,
            tenant=claims.tenant,
            gateway_id=asked.gateway_id,
            name=before.name if before else claims.instance,
            origin="managed",
            wake_url=wake_url,
            before=before,
        )
    if secret is None:
        retire(change, claims.instance, None)
        secret = issue(change, keyring, claims.instance, secret_id)
        change.touch("gateway", asked.gateway_id)
        change.note(
            "gateway.provisioned",
            tenant=claims.tenant,
            instance=claims.instance,
            gateway_id=asked.gateway_id,
        )
    front(change, claims.instance, asked.platform, asked.bot_id, settings.gateway_bots)
    policies.replace_route_claims(
        change, claims.instance, claims.tenant, asked.platform, asked.route_keys
    )
    return IssuedCredentials(
        claims.tenant, claims.instance, asked.gateway_id, secret, delivery_key, asked.route_keys
    )


def _bind_routes_only(
    change: ControlChange,
    holder: InstanceRecord,
    claims: ManagedClaims,
    asked: ProvisionRequest,
    most_keys: int,
) -> IssuedCredentials:
    """Bind routes of the tenant to the instance that has the gateway, for another of its tenant.

    Nothing else of that instance changes, and none of its routes ends.
    """
    own = find(change.connection, claims.instance)
    if holder.tenant != claims.tenant or (own is not None and not own.live):
        _refuse_taken(change, asked.gateway_id, claims.instance)
    policies.add_route_claims(
        change, holder.instance, holder.tenant, asked.platform, asked.route_keys, most_keys
    )
    change.note(
        "gateway.provisioned-without-secret",
        tenant=holder.tenant,
        instance=holder.instance,
        asked_by=claims.instance,
    )
    return IssuedCredentials(
        holder.tenant, holder.instance, holder.gateway_id, "", "", asked.route_keys
    )


def _digest(token: str) -> bytes:
    # A token has 256 random bits, so a plain digest cannot be attacked by guessing.
    return hashlib.sha256(token.encode()).digest()


def _refuse_lookalike(change: ControlChange, instance: str, name: str) -> None:
    """Refuse a name that people would mistake for another agent's when they link an account."""
    look = skeleton(name)
    for other in list_instances(change.connection):
        if other.live and other.instance != instance and skeleton(other.name) == look:
            raise RelayError(
                Code.CONFLICT,
                f"the agent {other.instance!r} has a name that looks the same",
                where="name",
                mend="choose another name, or revoke that agent first",
            )


def _refuse_taken(change: ControlChange, gateway_id: str, instance: str) -> None:
    holder = find_by_gateway(change.connection, gateway_id)
    if holder is not None and holder.instance != instance:
        raise RelayError(
            Code.CONFLICT, "this gateway id is taken", where="gatewayId", mend="choose another"
        )


def _refuse_mismatch(
    before: InstanceRecord, claims: ManagedClaims, asked: ProvisionRequest
) -> None:
    if before.tenant != claims.tenant:
        raise RelayError(Code.CONFLICT, "the instance is recorded under another tenant")
    if before.barred:
        raise RelayError(Code.FORBIDDEN, "the operator has revoked this instance")
    if before.revoked_at is None:
        if before.gateway_id != asked.gateway_id:
            raise RelayError(
                Code.CONFLICT,
                "the instance has another gateway",
                where="gatewayId",
                mend="deprovision it first, or use its gateway id",
            )
    elif claims.issued_at * 1000 <= before.revoked_at:
        raise RelayError(
            Code.UNAUTHORIZED,
            "this token is older than the deprovisioning of its instance",
            mend="get a fresh one",
        )


_OWN: Final = (
    dm_defaults,
    bindings,
    grants,
    open_places,
    principals,
    relevance,
    link_codes,
    link_pending,
    identities,
    vault,
    chat_profiles,
    stranger_rates,
)


def revoke(change: ControlChange, instance: str, *, by_operator: bool) -> bool:
    """Revoke an instance and delete what it holds; whether that changed anything.

    One that the operator revoked cannot enrol again before it is pardoned.
    """
    record = find(change.connection, instance)
    if record is None:
        raise unknown(instance)
    if record.revoked_at is not None and record.barred >= by_operator:
        return False
    _touch_holdings(change, instance)
    for table in _OWN:
        change.connection.execute(delete(table).where(table.c.instance == instance))
    for platform, user_id in {entity[1:] for entity in change.entities if entity[0] == "user"}:
        policies.mend_dm_default(change, platform, user_id)
    policies.drop_route_claims(change, instance)
    change.connection.execute(
        update(instances)
        .where(instances.c.instance == instance)
        .values(
            revoked_at=change.now,
            wake_url=None,
            wake_pinned=0,
            session_override=None,
            barred=int(by_operator or record.barred),
        )
    )
    _touch_revoked(change, record)
    change.note(
        "instance.barred" if by_operator else "instance.deprovisioned",
        tenant=record.tenant,
        instance=instance,
    )
    return True


def suspend(change: ControlChange, tenant: str) -> list[str]:
    """Suspend a tenant until `resume`; the instances that this stops."""
    _switch(change, tenant, change.now)
    stopped = list_instances(change.connection, tenant)
    for record in stopped:
        if record.revoked_at is None:
            _touch_revoked(change, record)
    change.note("tenant.suspended", tenant=tenant)
    return [record.instance for record in stopped]


def resume(change: ControlChange, tenant: str) -> None:
    """End the suspension of a tenant."""
    _switch(change, tenant, None)
    for record in list_instances(change.connection, tenant):
        change.touch("instance", record.instance)
        change.touch("gateway", record.gateway_id)
    change.note("tenant.resumed", tenant=tenant)


def pardon(change: ControlChange, instance: str) -> bool:
    """Let an instance that the operator revoked enrol again; False when it was not revoked."""
    record = find(change.connection, instance)
    if record is None:
        raise unknown(instance)
    if not record.barred:
        return False
    change.connection.execute(
        update(instances).where(instances.c.instance == instance).values(barred=0)
    )
    change.touch("instance", instance)
    change.note("instance.pardoned", tenant=record.tenant, instance=instance)
    return True


def _switch(change: ControlChange, tenant: str, moment: int | None) -> None:
    changed = change.connection.execute(
        update(tenants).where(tenants.c.tenant == tenant).values(suspended_at=moment)
    )
    if not changed.rowcount:
        raise RelayError(
            Code.NOT_FOUND,
            f"there is no tenant {tenant!r}",
            mend="`accord relay instances` lists them with their agents",
        )


def _touch_holdings(change: ControlChange, instance: str) -> None:
    for platform, user_id in change.connection.execute(
        select(bindings.c.platform, bindings.c.user_id)
        .where(bindings.c.instance == instance)
        .union(
            select(dm_defaults.c.platform, dm_defaults.c.user_id).where(
                dm_defaults.c.instance == instance
            ),
            select(link_pending.c.platform, link_pending.c.user_id).where(
                link_pending.c.instance == instance
            ),
            select(identities.c.platform, identities.c.bot_id).where(
                identities.c.instance == instance
            ),
        )
    ).all():
        change.touch("user", platform, user_id)
    for row in change.connection.execute(
        select(grants.c.platform, grants.c.scope_id, grants.c.channel_id).where(
            grants.c.instance == instance
        )
    ).all():
        change.touch("channel", *row)
    for row in change.connection.execute(
        select(open_places.c.platform, open_places.c.scope_id, open_places.c.channel_id).where(
            open_places.c.instance == instance
        )
    ).all():
        change.touch("open", *row)
    change.touch("codes")


def _touch_revoked(change: ControlChange, record: InstanceRecord) -> None:
    change.touch("instance", record.instance)
    change.touch("gateway", record.gateway_id)
    change.touch("revoked", record.instance)


def list_tokens(connection: Connection, tenant: str | None = None) -> list[MintedToken]:
    """Tokens that are still stored, of all tenants or of one, the newest first."""
    columns = [enrolments.c[name] for name in MintedToken.__slots__]
    which = () if tenant is None else (enrolments.c.tenant == tenant,)
    query = select(*columns).where(*which).order_by(enrolments.c.created_at.desc())
    return [MintedToken(*row) for row in connection.execute(query)]


def list_links(connection: Connection, instance: str | None, limit: int) -> list[LinkedAccount]:
    """Linked accounts, of all instances or of one."""
    columns = (bindings.c.platform, bindings.c.user_id, bindings.c.tenant, bindings.c.instance)
    home = (
        (dm_defaults.c.platform == bindings.c.platform)
        & (dm_defaults.c.user_id == bindings.c.user_id)
        & (dm_defaults.c.instance == bindings.c.instance)
    )
    query = select(*columns, bindings.c.created_at, dm_defaults.c.instance.is_not(None))
    which = () if instance is None else (bindings.c.instance == instance,)
    joined = query.select_from(bindings.outerjoin(dm_defaults, home)).where(*which)
    rows = connection.execute(joined.order_by(*columns).limit(limit))
    return [
        LinkedAccount(platform, user, tenant, of, created_at, bool(is_default))
        for platform, user, tenant, of, created_at, is_default in rows
    ]


_MOST: Final = 1000


def instance_status(connection: Connection, instance: str, now: int) -> dict[str, Any]:
    """What is known of an instance, at most the first thousand of each kind."""
    record = need(connection, instance)

    def rows(table: Any, *names: str) -> list[dict[str, Any]]:
        columns = [table.c[name] for name in names]
        found = connection.execute(
            select(*columns).where(table.c.instance == instance).order_by(*columns).limit(_MOST)
        )
        return [dict(row) for row in found.mappings()]

    ends = [row["expires_at"] for row in rows(gateway_secrets, "expires_at")]
    return {
        "tenant": record.tenant,
        "instanceId": record.instance,
        "gatewayId": record.gateway_id,
        "name": record.name,
        "origin": record.origin,
        "sessionKeys": record.dialect or "hermes",
        "hasWakeUrl": record.wake_url is not None,
        "wakeUrlSetBy": "operator" if record.wake_pinned else "gateway",
        "refusedHellos": refused_hellos(record),
        "createdAt": record.created_at,
        "secrets": sum(end is None or end > now for end in ends),
        "identities": rows(identities, "platform", "bot_id"),
        "routeKeys": rows(route_claims, "platform", "route_key"),
        "bindings": rows(bindings, "platform", "user_id"),
        "dmDefaults": rows(dm_defaults, "platform", "user_id"),
        "scopes": rows(grants, "platform", "scope_id", "channel_id", "owner"),
        "open": rows(open_places, "platform", "scope_id", "channel_id"),
        "principals": [
            {**row, "allow": canonical.decode(row["allow"])}
            for row in rows(principals, "platform", "policy", "allow")
        ],
        "relevance": [
            {
                "platform": row["platform"],
                "requireAddress": bool(row["require_address"]),
                "freeResponseScopes": canonical.decode(row["free_response_scopes"]),
                "allowOtherBots": bool(row["allow_other_bots"]),
                "setBy": "operator" if row["pinned"] else "gateway",
            }
            for row in rows(
                relevance,
                "platform",
                "require_address",
                "free_response_scopes",
                "allow_other_bots",
                "pinned",
            )
        ],
    }
