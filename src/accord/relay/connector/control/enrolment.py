"""How a gateway gets its secret: by an enrolment token, or by a managed token (section 3).

Owns the rules of both ways. A token is spent once. A repeated provisioning returns the secret that
is live, and only to whom it was given; route keys never belong to two tenants.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import delete, insert, select, update

from accord.relay.connector.control import records, routing
from accord.relay.connector.control.changes import Change
from accord.relay.connector.control.keyring import Keyring
from accord.relay.connector.control.managed import Claims
from accord.relay.connector.control.tables import enrolments
from accord.relay.errors import Code, RelayError

PREFIX: Final = "enrol_"
# How long a token that has expired is still told apart from one that never was.
REMEMBERED: Final = 7 * 86_400_000


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a gateway is told: its secret among it, which is not shown when this is printed."""

    tenant: str
    instance: str
    gateway_id: str
    secret: str = field(repr=False)
    delivery_key: str = field(repr=False)
    route_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Provisioning:
    """What a managed gateway says of itself when it asks for its secret."""

    gateway_id: str
    platform: str
    bot_id: str
    route_keys: tuple[str, ...] = ()
    wake_url: str | None = None


def mint(change: Change, token: str, tenant: str, instance: str, name: str, until: int) -> None:
    """Let whoever shows this token become the instance's gateway, once.

    Raises:
        RelayError: The instance belongs to another tenant.
    """
    before = records.find(change.connection, instance)
    if before is not None and before.tenant != tenant:
        raise RelayError(
            Code.CONFLICT,
            f"the instance {instance!r} belongs to another tenant",
            mend="choose another name for the instance",
        )
    # What was never used and can no longer be used is nobody's any more.
    change.connection.execute(
        delete(enrolments).where(enrolments.c.expires_at <= change.now - REMEMBERED)
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
    change: Change,
    keyring: Keyring,
    token: str,
    gateway_id: str,
    wake_url: str | None,
    secret_id: str,
) -> Credentials:
    """Spend a token: its instance gets this gateway and a new secret; older ones end.

    Raises:
        RelayError: The token is unknown, spent or expired, the gateway id is another instance's,
            or the tenant is switched off.
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
    before = records.find(change.connection, instance)
    if before is not None and before.tenant != tenant:
        raise RelayError(Code.CONFLICT, "the instance belongs to another tenant by now")
    if before is not None and before.barred:
        raise RelayError(Code.FORBIDDEN, "the operator has revoked this instance")
    delivery_key = records.ensure_tenant(change, keyring, tenant)
    records.put(
        change,
        instance=instance,
        tenant=tenant,
        gateway_id=gateway_id,
        name=row["name"],
        origin="enrolled",
        wake_url=wake_url,
        before=before,
    )
    records.retire(change, instance, None)
    secret = records.issue(change, keyring, instance, secret_id)
    change.connection.execute(
        update(enrolments).where(enrolments.c.digest == digest).values(used_at=change.now)
    )
    change.note("gateway.enrolled", tenant=tenant, instance=instance, gateway_id=gateway_id)
    return Credentials(tenant, instance, gateway_id, secret, delivery_key)


def provision(
    change: Change, keyring: Keyring, claims: Claims, asked: Provisioning, secret_id: str
) -> Credentials:
    """Give a managed gateway its secret: a new one the first time, the live one afterwards.

    Raises:
        RelayError: `conflict` where the stored record is of another tenant, instance or gateway,
            or a route key is another tenant's; `forbidden` where the operator revoked it.
    """
    _refuse_taken(change, asked.gateway_id, claims.instance)
    before = records.find(change.connection, claims.instance)
    if before is not None:
        _refuse_mismatch(before, claims, asked)
    delivery_key = records.ensure_tenant(change, keyring, claims.tenant)
    wake_url = asked.wake_url
    secret: str | None = None
    if before is not None and before.revoked_at is None:
        wake_url = wake_url or before.wake_url
        secret = next(
            iter(records.secrets_of(change.connection, keyring, before.instance, change.now)), None
        )
    if before is None or before.revoked_at is not None or wake_url != before.wake_url:
        records.put(
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
        records.retire(change, claims.instance, None)
        secret = records.issue(change, keyring, claims.instance, secret_id)
        change.touch("gateway", asked.gateway_id)
        change.note(
            "gateway.provisioned",
            tenant=claims.tenant,
            instance=claims.instance,
            gateway_id=asked.gateway_id,
        )
    records.front(change, claims.instance, asked.platform, asked.bot_id)
    routing.replace(change, claims.instance, claims.tenant, asked.platform, asked.route_keys)
    return Credentials(
        claims.tenant, claims.instance, asked.gateway_id, secret, delivery_key, asked.route_keys
    )


def _digest(token: str) -> bytes:
    # A token has 256 bits of chance, so that nothing is won by guessing against its digest.
    return hashlib.sha256(token.encode()).digest()


def _refuse_taken(change: Change, gateway_id: str, instance: str) -> None:
    holder = records.find_by_gateway(change.connection, gateway_id)
    if holder is not None and holder.instance != instance:
        raise RelayError(
            Code.CONFLICT, "this gateway id is taken", where="gatewayId", mend="choose another"
        )


def _refuse_mismatch(before: records.Instance, claims: Claims, asked: Provisioning) -> None:
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
