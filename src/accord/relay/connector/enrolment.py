"""Enrolment tokens, provisioning, revocation and suspension of instances.

A token is used once. Repeated provisioning returns the live secret, to the same gateway only. A
revoked instance keeps its record, so that its secret is recognised and refused.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import Connection, delete, insert, select, update

from accord.kernel.confusables import skeleton
from accord.relay.connector import policies, registry, routes
from accord.relay.connector.authentication import ManagedClaims
from accord.relay.connector.keyring import Keyring
from accord.relay.connector.store import ControlChange
from accord.relay.connector.tables import (
    bindings,
    dm_defaults,
    enrolments,
    grants,
    identities,
    instances,
    link_codes,
    link_pending,
    principals,
    relevance,
    tenants,
    vault,
)
from accord.relay.errors import Code, RelayError

ENROLMENT_PREFIX: Final = "enrol_"
# For how long an expired token is answered as expired rather than unknown.
REMEMBERED_MS: Final = 7 * 86_400_000


@dataclass(frozen=True, slots=True)
class IssuedCredentials:
    """What a gateway gets when it enrols or is provisioned."""

    tenant: str
    instance: str
    gateway_id: str
    secret: str = field(repr=False)
    delivery_key: str = field(repr=False)
    route_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProvisionRequest:
    """A managed gateway's request for its secret."""

    gateway_id: str
    platform: str
    bot_id: str
    route_keys: tuple[str, ...] = ()
    wake_url: str | None = None


def mint(
    change: ControlChange, token: str, tenant: str, instance: str, name: str, until: int
) -> None:
    """Store a token by which one gateway can enrol for the instance.

    Raises:
        RelayError: The instance belongs to another tenant, or another one's name looks the same.
    """
    before = registry.find(change.connection, instance)
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
    """Use a token: its instance gets this gateway and a new secret; older ones end.

    Raises:
        RelayError: The token is unknown, used or expired, the gateway id is another instance's,
            or the tenant is suspended.
    """
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
    before = registry.find(change.connection, instance)
    if before is not None and before.tenant != tenant:
        raise RelayError(Code.CONFLICT, "the instance belongs to another tenant now")
    if before is not None and before.barred:
        raise RelayError(Code.FORBIDDEN, "the operator has revoked this instance")
    delivery_key = registry.ensure_tenant(change, keyring, tenant)
    registry.put(
        change,
        instance=instance,
        tenant=tenant,
        gateway_id=gateway_id,
        name=row["name"],
        origin="enrolled",
        wake_url=wake_url,
        before=before,
    )
    registry.retire(change, instance, None)
    secret = registry.issue(change, keyring, instance, secret_id)
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
) -> IssuedCredentials:
    """Give a managed gateway its secret: a new one the first time, the live one afterwards.

    Raises:
        RelayError: `conflict` where the stored record is of another tenant, instance or gateway,
            or a route key is another tenant's; `forbidden` where the operator revoked it.
    """
    _refuse_taken(change, asked.gateway_id, claims.instance)
    before = registry.find(change.connection, claims.instance)
    if before is not None:
        _refuse_mismatch(before, claims, asked)
    delivery_key = registry.ensure_tenant(change, keyring, claims.tenant)
    wake_url = asked.wake_url
    secret: str | None = None
    if before is not None and before.revoked_at is None:
        wake_url = wake_url or before.wake_url
        secret = next(
            iter(registry.secrets_of(change.connection, keyring, before.instance, change.now)), None
        )
    if before is None or before.revoked_at is not None or wake_url != before.wake_url:
        registry.put(
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
        registry.retire(change, claims.instance, None)
        secret = registry.issue(change, keyring, claims.instance, secret_id)
        change.touch("gateway", asked.gateway_id)
        change.note(
            "gateway.provisioned",
            tenant=claims.tenant,
            instance=claims.instance,
            gateway_id=asked.gateway_id,
        )
    registry.front(change, claims.instance, asked.platform, asked.bot_id)
    routes.replace_claims(change, claims.instance, claims.tenant, asked.platform, asked.route_keys)
    return IssuedCredentials(
        claims.tenant, claims.instance, asked.gateway_id, secret, delivery_key, asked.route_keys
    )


def _digest(token: str) -> bytes:
    # A token has 256 random bits, so a plain digest cannot be attacked by guessing.
    return hashlib.sha256(token.encode()).digest()


def _refuse_lookalike(change: ControlChange, instance: str, name: str) -> None:
    """Refuse a name that people would mistake for another agent's when they link an account."""
    look = skeleton(name)
    for other in registry.list_instances(change.connection):
        if other.live and other.instance != instance and skeleton(other.name) == look:
            raise RelayError(
                Code.CONFLICT,
                f"the agent {other.instance!r} has a name that looks the same",
                where="name",
                mend="choose another name, or revoke that agent first",
            )


def _refuse_taken(change: ControlChange, gateway_id: str, instance: str) -> None:
    holder = registry.find_by_gateway(change.connection, gateway_id)
    if holder is not None and holder.instance != instance:
        raise RelayError(
            Code.CONFLICT, "this gateway id is taken", where="gatewayId", mend="choose another"
        )


def _refuse_mismatch(
    before: registry.InstanceRecord, claims: ManagedClaims, asked: ProvisionRequest
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


_OWN: Final = (
    dm_defaults,
    bindings,
    grants,
    principals,
    relevance,
    link_codes,
    link_pending,
    identities,
    vault,
)


def revoke(change: ControlChange, instance: str, *, by_operator: bool) -> bool:
    """Revoke an instance and delete what it holds; whether that changed anything.

    One that the operator revoked cannot enrol again before it is pardoned.

    Raises:
        RelayError: There is no such instance.
    """
    record = registry.find(change.connection, instance)
    if record is None:
        raise registry.unknown(instance)
    if record.revoked_at is not None and record.barred >= by_operator:
        return False
    _touch_holdings(change, instance)
    for table in _OWN:
        change.connection.execute(delete(table).where(table.c.instance == instance))
    for platform, user_id in {entity[1:] for entity in change.entities if entity[0] == "user"}:
        policies.mend_dm_default(change, platform, user_id)
    routes.drop_claims(change, instance)
    change.connection.execute(
        update(instances)
        .where(instances.c.instance == instance)
        .values(revoked_at=change.now, wake_url=None, barred=int(by_operator or record.barred))
    )
    _touch_revoked(change, record)
    change.note(
        "instance.barred" if by_operator else "instance.deprovisioned",
        tenant=record.tenant,
        instance=instance,
    )
    return True


def suspend(change: ControlChange, tenant: str) -> list[str]:
    """Suspend a tenant until `resume`; the instances that this stops.

    Raises:
        RelayError: There is no such tenant.
    """
    _switch(change, tenant, change.now)
    stopped = registry.list_instances(change.connection, tenant)
    for record in stopped:
        if record.revoked_at is None:
            _touch_revoked(change, record)
    change.note("tenant.suspended", tenant=tenant)
    return [record.instance for record in stopped]


def resume(change: ControlChange, tenant: str) -> None:
    """End the suspension of a tenant.

    Raises:
        RelayError: There is no such tenant.
    """
    _switch(change, tenant, None)
    for record in registry.list_instances(change.connection, tenant):
        change.touch("instance", record.instance)
        change.touch("gateway", record.gateway_id)
    change.note("tenant.resumed", tenant=tenant)


def pardon(change: ControlChange, instance: str) -> bool:
    """Let an instance that the operator revoked enrol again; False when it was not revoked.

    Raises:
        RelayError: There is no such instance.
    """
    record = registry.find(change.connection, instance)
    if record is None:
        raise registry.unknown(instance)
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
    change.touch("codes")


def _touch_revoked(change: ControlChange, record: registry.InstanceRecord) -> None:
    change.touch("instance", record.instance)
    change.touch("gateway", record.gateway_id)
    change.touch("revoked", record.instance)


@dataclass(frozen=True, slots=True)
class MintedToken:
    """An enrolment token without its value; times in milliseconds, `used_at` None if unused."""

    tenant: str
    instance: str
    name: str
    created_at: int
    expires_at: int
    used_at: int | None


def list_tokens(connection: Connection, tenant: str | None = None) -> list[MintedToken]:
    """Tokens that are still stored, of all tenants or of one, the newest first."""
    columns = [enrolments.c[name] for name in MintedToken.__slots__]
    which = () if tenant is None else (enrolments.c.tenant == tenant,)
    query = select(*columns).where(*which).order_by(enrolments.c.created_at.desc())
    return [MintedToken(*row) for row in connection.execute(query)]
