"""Everything that can be done to the control half, as a Python interface.

The command line, the HTTP routes and tests call the same methods. Methods that take a `Principal`
act with that instance's own authority; those that take names are the operator's. Owns the order
"check, change, tell", and nothing about transport.
"""

import secrets
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from accord.kernel.clock import Clock
from accord.kernel.ulid import UlidSource
from accord.relay.connector.control import (
    enrolment,
    links,
    policies,
    records,
    revocation,
    routing,
    scopes,
    status,
)
from accord.relay.connector.control.changes import Change
from accord.relay.connector.control.directory import Principal
from accord.relay.connector.control.enrolment import Credentials, Provisioning
from accord.relay.connector.control.handed import EnrolmentToken, LinkCode, Rotated
from accord.relay.connector.control.managed import Claims
from accord.relay.connector.control.names import demand
from accord.relay.connector.control.records import Instance
from accord.relay.connector.control.stored import StoreDirectory
from accord.relay.errors import Code, RelayError
from accord.relay.gate.facts import PrincipalPolicy
from accord.relay.gate.linking import CODE_BITS, write_code
from accord.relay.outgoing import url_allowed
from accord.relay.wire.policy import RelevancePolicy

T = TypeVar("T")

OPERATOR: Final = "operator"
"""Who acts where an operator does, and nobody says which."""


class Control:
    """What operators, gateways and portals can do.

    Args:
        directory: Who is who.
        clock: The time.
        by: Who acts, for the journal; None for whoever a method is called for.
    """

    def __init__(self, directory: StoreDirectory, clock: Clock, by: str | None = None) -> None:
        self.directory = directory
        self._by = by
        self._ledger = directory.ledger
        self._keyring = directory.keyring
        self._settings = directory.settings
        self._clock = clock
        self._ids = UlidSource(clock)

    def acting_as(self, by: str) -> "Control":
        """The same, in the hands of somebody whom the journal names."""
        return Control(self.directory, self._clock, by)

    async def mint_token(
        self,
        tenant: str,
        instance: str | None = None,
        *,
        name: str | None = None,
        seconds: int | None = None,
    ) -> EnrolmentToken:
        """Make a token by which a gateway becomes the instance's, once."""
        instance = instance or f"agent-{secrets.token_hex(6)}"
        name = name or instance
        demand(tenant=tenant, instance=instance, name=name)
        seconds = self._settings.enrolment_seconds if seconds is None else seconds
        if not 0 < seconds <= 365 * 86_400:
            raise RelayError(Code.BAD_REQUEST, "a token is valid for 1 second to 1 year")
        token = enrolment.PREFIX + secrets.token_urlsafe(32)
        until = self._now() + seconds * 1000
        await self._change(
            OPERATOR, lambda change: enrolment.mint(change, token, tenant, instance, name, until)
        )
        return EnrolmentToken(tenant, instance, until, token)

    async def enrol(self, token: str, gateway_id: str, wake_url: str | None = None) -> Credentials:
        """Spend an enrolment token."""
        demand(enrollmentToken=token, gatewayId=gateway_id)
        self._check_wake_url(wake_url)
        secret_id = self._ids.new()
        return await self._change(
            f"gateway {gateway_id}",
            lambda change: enrolment.enrol(
                change, self._keyring, token, gateway_id, wake_url, secret_id
            ),
        )

    async def provision(self, claims: Claims, asked: Provisioning) -> Credentials:
        """Give a managed gateway its secret."""
        demand(gatewayId=asked.gateway_id, platform=asked.platform, botId=asked.bot_id)
        for key in asked.route_keys:
            demand(routeKeys=key)
        if len(asked.route_keys) > routing.MOST_KEYS:
            raise RelayError(
                Code.BAD_REQUEST, f"at most {routing.MOST_KEYS} route keys", where="routeKeys"
            )
        self._check_wake_url(asked.wake_url)
        secret_id = self._ids.new()
        return await self._change(
            f"managed {claims.instance}",
            lambda change: enrolment.provision(change, self._keyring, claims, asked, secret_id),
        )

    async def rotate(self, caller: Principal, *, grace_seconds: int | None = None) -> Rotated:
        """Give the caller a new secret; the old one stays good for a while."""
        grace = self._settings.grace_seconds if grace_seconds is None else grace_seconds
        secret_id = self._ids.new()
        until = self._now() + max(0, grace) * 1000

        def work(change: Change) -> str:
            record = records.need(change.connection, caller.instance)
            records.retire(change, caller.instance, until)
            change.touch("gateway", record.gateway_id)
            change.note("secret.rotated", tenant=record.tenant, instance=record.instance)
            return records.issue(change, self._keyring, caller.instance, secret_id)

        return Rotated(until, await self._change(_agent(caller), work))

    async def deprovision(self, caller: Principal) -> None:
        """Take the caller away; it may be provisioned or enrolled anew later."""
        await self._revoke(caller.instance, _agent(caller), by_operator=False)

    async def revoke(self, instance: str) -> None:
        """Take an instance away for good, until it is pardoned."""
        await self._revoke(instance, OPERATOR, by_operator=True)

    async def pardon(self, instance: str) -> bool:
        """Let an instance that was taken away enrol or be provisioned again; whether it was."""
        return await self._change(OPERATOR, lambda change: revocation.pardon(change, instance))

    async def suspend(self, tenant: str) -> list[str]:
        """Switch off a whole tenant at once, and say which instances that stops."""
        stopped = await self._change(OPERATOR, lambda change: revocation.suspend(change, tenant))
        await self.directory.settle()
        return stopped

    async def resume(self, tenant: str) -> None:
        """Switch a tenant on again."""
        await self._change(OPERATOR, lambda change: revocation.resume(change, tenant))

    async def instances(self, tenant: str | None = None) -> list[Instance]:
        """Every instance, or those of one tenant."""
        return await self._ledger.read(
            lambda connection: records.list_instances(connection, tenant)
        )

    async def principal(self, instance: str) -> Principal:
        """The authority of an instance, for an operator who acts in its place."""
        demand(instance=instance)
        record = await self._ledger.read(lambda connection: records.need(connection, instance))
        return Principal(record.tenant, record.instance, record.gateway_id, "managed")

    async def status(self, caller: Principal) -> dict[str, Any]:
        """What the connector knows of the caller, without secrets."""
        now = self._now()
        return await self._ledger.read(
            lambda connection: status.report(connection, caller.instance, now)
        )

    async def link(self, caller: Principal) -> LinkCode:
        """Make a code by which a person links an account to the caller."""
        code = write_code(secrets.randbits(CODE_BITS))
        until = self._now() + self._settings.link_seconds * 1000
        await self._change(
            _agent(caller),
            lambda change: links.offer(change, self._keyring, caller.instance, code, until),
        )
        return LinkCode(until, code)

    async def bind(self, instance: str, platform: str, user_id: str) -> None:
        """Link an account by the operator's word."""
        demand(instance=instance, platform=platform, user_id=user_id)
        await self._change(
            OPERATOR,
            lambda change: links.bind(
                change, records.need(change.connection, instance), platform, user_id
            ),
        )

    async def unbind(self, platform: str, user_id: str, instance: str | None = None) -> int:
        """Undo the links of an account, or the one to an instance; how many there were."""
        demand(platform=platform, user_id=user_id)
        return await self._change(
            OPERATOR, lambda change: links.unbind(change, platform, user_id, instance)
        )

    async def set_dm_default(self, caller: Principal, platform: str, user_id: str) -> None:
        """Let the direct messages of a user who is bound to the caller go to it."""
        demand(platform=platform, user_id=user_id)
        await self._change(
            _agent(caller),
            lambda change: policies.set_dm_default(change, caller, platform, user_id),
        )

    async def route(self, tenant: str, platform: str, key: str) -> None:
        """Give a scope, chat or webhook to a tenant."""
        demand(tenant=tenant, platform=platform, route_key=key)

        def work(change: Change) -> None:
            records.ensure_tenant(change, self._keyring, tenant)
            routing.pin(change, tenant, platform, key)

        await self._change(OPERATOR, work)

    async def unroute(self, platform: str, key: str) -> None:
        """Take the operator's route away."""
        demand(platform=platform, route_key=key)
        await self._change(OPERATOR, lambda change: routing.unpin(change, platform, key))

    async def claim_scope(
        self, caller: Principal, platform: str, scope_id: str, channel_id: str
    ) -> None:
        """Give a channel to the caller, if a bound owner may manage it on its platform."""
        _demand_channel(platform, scope_id, channel_id)
        owner = await self._manager(caller, platform, scope_id, channel_id)
        await self._change(
            _agent(caller),
            lambda change: scopes.claim(change, caller, platform, scope_id, channel_id, owner),
        )

    async def grant(
        self,
        instance: str,
        platform: str,
        scope_id: str,
        channel_id: str,
        owner: str | None = None,
    ) -> None:
        """Give a channel to an instance by the operator's word."""
        caller = await self.principal(instance)
        _demand_channel(platform, scope_id, channel_id)
        chosen = owner or next(iter(await self._owners(caller, platform)), None)
        if chosen is None:
            raise RelayError(
                Code.CONFLICT, "the instance has no linked owner there", mend="link one first"
            )
        await self._change(
            OPERATOR,
            lambda change: scopes.claim(change, caller, platform, scope_id, channel_id, chosen),
        )

    async def release_scope(
        self, caller: Principal, platform: str, scope_id: str, channel_id: str
    ) -> None:
        """Give a channel back."""
        _demand_channel(platform, scope_id, channel_id)
        await self._change(
            _agent(caller),
            lambda change: scopes.release(change, caller, platform, scope_id, channel_id),
        )

    async def set_principal(
        self, caller: Principal, platform: str, policy: PrincipalPolicy, allow: Iterable[str] = ()
    ) -> None:
        """Say whose messages the caller may see in the channels that it holds."""
        listed = frozenset(allow)
        demand(platform=platform)
        for user_id in listed:
            demand(allow=user_id)
        await self._change(
            _agent(caller),
            lambda change: policies.set_principal(change, caller, platform, policy, listed),
        )

    async def set_relevance(
        self, caller: Principal, platform: str, policy: RelevancePolicy
    ) -> None:
        """Say when the caller wants to be spoken to."""
        demand(platform=platform)
        for scope in policy.free_response_scopes:
            demand(freeResponseScopes=scope)
        await self._change(
            _agent(caller), lambda change: policies.set_relevance(change, caller, platform, policy)
        )

    async def _owners(self, caller: Principal, platform: str) -> list[str]:
        return await self._ledger.read(
            lambda connection: scopes.owners(connection, caller.instance, platform)
        )

    async def _manager(
        self, caller: Principal, platform: str, scope_id: str, channel_id: str
    ) -> str:
        for owner in await self._owners(caller, platform):
            if await self.directory.visibility.can_manage(owner, platform, scope_id, channel_id):
                return owner
        raise RelayError(
            Code.FORBIDDEN,
            "no linked owner of the instance is known to manage this channel",
            where="channel_id",
            mend="link an account that may manage it, then claim it again",
        )

    async def _revoke(self, instance: str, who: str, *, by_operator: bool) -> None:
        await self._change(
            who, lambda change: revocation.revoke(change, instance, by_operator=by_operator)
        )
        await self.directory.settle()

    async def _change(self, who: str, work: Callable[[Change], T]) -> T:
        return await self._ledger.change(work, by=self._by or who)

    def _check_wake_url(self, url: str | None) -> None:
        if url is None:
            return
        verdict = url_allowed(url, self._settings.outgoing)
        if not verdict.allowed:
            raise RelayError(
                Code.BAD_REQUEST,
                f"this wake URL cannot be used: {verdict.reason}",
                where="wakeUrl",
                mend="give a public https URL",
            )

    def _now(self) -> int:
        return int(self._clock.now() * 1000)


def _agent(caller: Principal) -> str:
    return f"agent {caller.instance}"


def _demand_channel(platform: str, scope_id: str, channel_id: str) -> None:
    # A chat that is in no scope has the empty one.
    demand(platform=platform, scope_id=scope_id or "-", channel_id=channel_id)
