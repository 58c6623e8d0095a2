"""Everything that operators, gateways and portals can change, as a Python interface.

The command line and the HTTP routes call the same methods. Methods that take a `Principal` act with
that instance's own authority; those that take names act with the operator's.
"""

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from accord.kernel.clock import Clock
from accord.kernel.identifiers import UlidSource
from accord.relay.connector import links, operators, policies, registry, session_rules, vault
from accord.relay.connector.directory import Directory
from accord.relay.connector.links import LinkCode
from accord.relay.connector.registry import (
    EnrolmentToken,
    InstanceRecord,
    IssuedCredentials,
    ManagedClaims,
    ProvisionRequest,
    RotatedSecret,
)
from accord.relay.connector.store import ControlChange, Principal
from accord.relay.errors import Code, RelayError
from accord.relay.rules.gate import OpenKey, PrincipalPolicy, RelevancePolicy
from accord.relay.rules.members import require_names
from accord.relay.rules.messages import LINK_CODE_BITS, SessionOverride, write_link_code
from accord.web.outgoing import url_allowed

T = TypeVar("T")

OPERATOR: Final = "operator"
"""The actor in the journal where no operator is named."""


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """The ids of the keys in `relay.key`, and how many secrets are under older ones."""

    key_id: str
    older: tuple[str, ...]
    prepared: str | None
    old_boxes: int


class Control:
    """What operators, gateways and portals can do; `by` is the actor in the journal."""

    def __init__(self, directory: Directory, clock: Clock, by: str | None = None) -> None:
        self.directory = directory
        self._by = by
        self._changes = directory.changes
        self._keyring = directory.keyring
        self._settings = directory.settings
        self._clock = clock
        self._ids = UlidSource(clock)

    def acting_as(self, by: str) -> "Control":
        """The same, with a named actor in the journal."""
        return Control(self.directory, self._clock, by)

    async def mint_token(
        self,
        tenant: str,
        instance: str | None = None,
        *,
        name: str | None = None,
        seconds: int | None = None,
    ) -> EnrolmentToken:
        """Make a token by which one gateway can enrol for the instance."""
        instance = instance or f"agent-{secrets.token_hex(6)}"
        name = name or instance
        require_names(tenant=tenant, instance=instance, name=name)
        seconds = self._settings.enrolment_seconds if seconds is None else seconds
        if not 0 < seconds <= 365 * 86_400:
            raise RelayError(Code.BAD_REQUEST, "a token is valid for 1 second to 1 year")
        token = registry.ENROLMENT_PREFIX + secrets.token_urlsafe(32)
        until = self._now() + seconds * 1000
        await self._change(
            OPERATOR, lambda change: registry.mint(change, token, tenant, instance, name, until)
        )
        return EnrolmentToken(tenant, instance, until, token)

    async def enrol(
        self, token: str, gateway_id: str, wake_url: str | None = None
    ) -> IssuedCredentials:
        """Use an enrolment token."""
        require_names(enrollmentToken=token, gatewayId=gateway_id)
        self._check_wake_url(wake_url)
        secret_id = self._ids.new()
        return await self._change(
            f"gateway {gateway_id}",
            lambda change: registry.enrol(
                change, self._keyring, token, gateway_id, wake_url, secret_id
            ),
        )

    async def provision(self, claims: ManagedClaims, asked: ProvisionRequest) -> IssuedCredentials:
        """Give a managed gateway its secret."""
        require_names(gatewayId=asked.gateway_id, platform=asked.platform, botId=asked.bot_id)
        for key in asked.route_keys:
            require_names(routeKeys=key)
        settings = self._settings
        if len(asked.route_keys) > settings.route_keys:
            raise RelayError(
                Code.BAD_REQUEST,
                f"at most {settings.route_keys} route keys are allowed",
                where="routeKeys",
            )
        self._check_wake_url(asked.wake_url)
        secret_id = self._ids.new()
        return await self._change(
            f"managed {claims.instance}",
            lambda change: registry.provision(
                change, self._keyring, claims, asked, secret_id, settings
            ),
        )

    async def rotate(self, caller: Principal, *, grace_seconds: int | None = None) -> RotatedSecret:
        """Give the caller a new secret; the old one stays valid for a grace period."""
        grace = self._settings.grace_seconds if grace_seconds is None else grace_seconds
        secret_id = self._ids.new()
        until = self._now() + max(0, grace) * 1000

        def work(change: ControlChange) -> str:
            record = registry.need(change.connection, caller.instance)
            registry.retire(change, caller.instance, until)
            registry.drop_expired_secrets(change, caller.instance)
            change.touch("gateway", record.gateway_id)
            change.note("secret.rotated", tenant=record.tenant, instance=record.instance)
            return registry.issue(change, self._keyring, caller.instance, secret_id)

        return RotatedSecret(until, await self._change(_agent(caller), work))

    async def prepare_rotation(self, caller: Principal) -> tuple[str, RotatedSecret]:
        """Give the caller a second secret and its id; it ends unless it is confirmed in time.

        The first one stays good until then, so that nothing is lost if the caller dies before it
        has stored the new one. `old_until` is until when it can be confirmed.
        """
        secret_id = self._ids.new()
        until = self._now() + self._settings.grace_seconds * 1000

        def work(change: ControlChange) -> str:
            record = registry.need(change.connection, caller.instance)
            change.touch("gateway", record.gateway_id)
            change.note("secret.prepared", tenant=record.tenant, instance=record.instance)
            registry.drop_expired_secrets(change, caller.instance)
            return registry.issue(change, self._keyring, caller.instance, secret_id, until)

        return secret_id, RotatedSecret(until, await self._change(_agent(caller), work))

    async def confirm_rotation(self, caller: Principal, secret_id: str) -> int:
        """Make a prepared secret the caller's; until when, in milliseconds, the old one is valid.

        Confirming it twice changes nothing.
        """
        until = self._now() + self._settings.grace_seconds * 1000

        def work(change: ControlChange) -> None:
            record = registry.need(change.connection, caller.instance)
            if registry.confirm(change, caller.instance, secret_id, until):
                change.touch("gateway", record.gateway_id)
                change.note("secret.rotated", tenant=record.tenant, instance=record.instance)

        await self._change(_agent(caller), work)
        return until

    async def set_wake_url(
        self, caller: Principal, url: str | None, *, by_operator: bool = False
    ) -> bool:
        """Set or clear the URL by which the caller is woken; False where the operator's stays."""
        self._check_wake_url(url)
        return await self._change(
            OPERATOR if by_operator else _agent(caller),
            lambda change: registry.set_wake_url(
                change, caller.instance, url, by_operator=by_operator
            ),
        )

    async def override_sessions(self, instance: str, said: SessionOverride | None) -> None:
        """Say how the gateway of an instance keys sessions, by the operator's authority."""
        await self._change(OPERATOR, lambda change: session_rules.override(change, instance, said))

    async def key_status(self) -> KeyStatus:
        """Which keys encrypt the relay's secrets."""
        ring = self._keyring
        left = await self._changes.read(lambda connection: vault.count_old_boxes(connection, ring))
        return KeyStatus(ring.key_id, ring.older, ring.prepared, left)

    async def prepare_key(self) -> KeyStatus:
        """Add the key of the next rotation to `relay.key`; it encrypts nothing yet."""
        self._keyring.prepare()
        return await self.key_status()

    async def rotate_key(self, *, with_new_key: bool = True) -> int:
        """Encrypt everything under a new key; how many secrets that were.

        Older keys stay in the file. Cut off at any moment, nothing is lost, and a call without a
        new key encrypts the rest.

        Raises:
            RelayError: A secret cannot be decrypted, or the key file cannot be written.
        """
        ring, done = self._keyring, 0
        if with_new_key:
            made = ring.rotate()
            await self._change(OPERATOR, lambda change: change.note("key.rotated", key=made))
        while count := await self._change(OPERATOR, lambda c: vault.reencrypt_some(c, ring)):
            done += count
        return done

    async def forget_keys(self) -> int:
        """Drop the older keys from `relay.key`; how many there were.

        Link codes that were made under them stop working.

        Raises:
            RelayError: Something is still encrypted under one of them.
        """
        ring = self._keyring

        def work(change: ControlChange) -> int:
            # In a unit of work, so that on SQLite nothing is encrypted in between.
            left, older = vault.count_old_boxes(change.connection, ring), ring.older
            if left:
                raise RelayError(
                    Code.CONFLICT,
                    f"{left} secrets are still encrypted under an older key",
                    mend="`accord relay key rotate --finish` encrypts them anew",
                )
            if older:
                ring.forget_old()
                change.note("key.forgotten", keys=len(older))
            return len(older)

        return await self._change(OPERATOR, work)

    async def deprovision(self, caller: Principal) -> None:
        """Revoke the caller; it may be provisioned or enrolled anew later."""
        await self._revoke(caller.instance, _agent(caller), by_operator=False)

    async def revoke(self, instance: str) -> None:
        """Revoke an instance, until it is pardoned."""
        await self._revoke(instance, OPERATOR, by_operator=True)

    async def pardon(self, instance: str) -> bool:
        """Let a revoked instance enrol or be provisioned again; False when it was not revoked."""
        return await self._change(OPERATOR, lambda change: registry.pardon(change, instance))

    async def suspend(self, tenant: str) -> list[str]:
        """Suspend a tenant; the instances that this stops."""
        stopped = await self._change(OPERATOR, lambda change: registry.suspend(change, tenant))
        await self.directory.settle()
        return stopped

    async def resume(self, tenant: str) -> None:
        """End the suspension of a tenant."""
        await self._change(OPERATOR, lambda change: registry.resume(change, tenant))

    async def add_operator(
        self, name: str, *, seconds: int, read_only: bool
    ) -> operators.MintedOperatorToken:
        """Make a token by which an operator manages this connector from elsewhere."""
        return await self._change(
            OPERATOR,
            lambda change: operators.mint(change, name, seconds=seconds, read_only=read_only),
        )

    async def revoke_operator(self, name: str) -> None:
        """End an operator's token at once."""
        await self._change(OPERATOR, lambda change: operators.revoke(change, name))

    async def instances(self, tenant: str | None = None) -> list[InstanceRecord]:
        """Every instance, or those of one tenant."""
        return await self._changes.read(
            lambda connection: registry.list_instances(connection, tenant)
        )

    async def principal(self, instance: str) -> Principal:
        """The authority of an instance, for an operator who acts in its place."""
        require_names(instance=instance)
        record = await self._changes.read(lambda connection: registry.need(connection, instance))
        return Principal(record.tenant, record.instance, record.gateway_id, "managed")

    async def status(self, caller: Principal) -> dict[str, Any]:
        """What the connector knows of the caller, without secrets."""
        now = self._now()
        return await self._changes.read(
            lambda connection: registry.instance_status(connection, caller.instance, now)
        )

    async def link(self, caller: Principal) -> LinkCode:
        """Make a code by which a person links an account to the caller."""
        until = self._now() + self._settings.link_seconds * 1000
        code = LinkCode(until, write_link_code(secrets.randbits(LINK_CODE_BITS)))
        most = self._settings.link_codes
        await self._change(
            _agent(caller),
            lambda change: links.offer(change, self._keyring, caller.instance, code, most),
        )
        return code

    async def bind(self, instance: str, platform: str, user_id: str) -> None:
        """Link an account by the operator's authority."""
        require_names(instance=instance, platform=platform, user_id=user_id)
        await self._change(
            OPERATOR,
            lambda change: links.bind(
                change, registry.need(change.connection, instance), platform, user_id
            ),
        )

    async def unbind(self, platform: str, user_id: str, instance: str | None = None) -> int:
        """Remove the links of an account, or the one to an instance; how many there were."""
        require_names(platform=platform, user_id=user_id)
        return await self._change(
            OPERATOR, lambda change: links.unbind(change, platform, user_id, instance)
        )

    async def set_dm_default(self, caller: Principal, platform: str, user_id: str) -> None:
        """Route the direct messages of a user who is bound to the caller to it."""
        require_names(platform=platform, user_id=user_id)
        await self._change(
            _agent(caller),
            lambda change: policies.set_dm_default(change, caller, platform, user_id),
        )

    async def route(self, tenant: str, platform: str, key: str) -> None:
        """Give a scope, chat or webhook to a tenant."""
        require_names(tenant=tenant, platform=platform, route_key=key)

        def work(change: ControlChange) -> None:
            registry.ensure_tenant(change, self._keyring, tenant)
            policies.pin_route(change, tenant, platform, key)

        await self._change(OPERATOR, work)

    async def unroute(self, platform: str, key: str) -> None:
        """Remove the operator's route."""
        require_names(platform=platform, route_key=key)
        await self._change(OPERATOR, lambda change: policies.unpin_route(change, platform, key))

    async def share(self, platform: str, key: str) -> bool:
        """Say that several tenants share a scope or chat; whether that is new."""
        require_names(platform=platform, route_key=key)
        return await self._change(
            OPERATOR, lambda change: policies.share_place(change, platform, key)
        )

    async def unshare(self, platform: str, key: str) -> bool:
        """Let a scope or chat belong to one tenant again; whether it was shared."""
        require_names(platform=platform, route_key=key)
        return await self._change(
            OPERATOR, lambda change: policies.unshare_place(change, platform, key)
        )

    async def open(
        self, instance: str, platform: str, scope_id: str = "", channel_id: str = ""
    ) -> None:
        """Let people who are not linked talk to an instance in a scope or a channel of it.

        Without both, in direct messages.
        """
        caller = await self.principal(instance)
        place = _open_key(platform, scope_id, channel_id)
        await self._change(
            OPERATOR,
            lambda change: policies.open_place(change, caller.tenant, caller.instance, place),
        )

    async def close(self, platform: str, scope_id: str = "", channel_id: str = "") -> str | None:
        """End that an instance is open to everybody in a place; which it was."""
        place = _open_key(platform, scope_id, channel_id)
        return await self._change(OPERATOR, lambda change: policies.close_place(change, place))

    async def places(self) -> list[dict[str, Any]]:
        """Every route, shared place, grant and open place."""
        most = self._settings.listed_places
        return await self._changes.read(lambda connection: policies.list_places(connection, most))

    async def claim_scope(
        self, caller: Principal, platform: str, scope_id: str, channel_id: str
    ) -> None:
        """Give a channel to the caller, if a bound owner may manage it on its platform."""
        _require_channel(platform, scope_id, channel_id)
        owner = await self._manager(caller, platform, scope_id, channel_id)
        await self._change(
            _agent(caller),
            lambda change: policies.claim_channel(
                change, caller, platform, scope_id, channel_id, owner
            ),
        )

    async def grant(
        self,
        instance: str,
        platform: str,
        scope_id: str,
        channel_id: str,
        owner: str | None = None,
    ) -> None:
        """Give a channel to an instance by the operator's authority."""
        caller = await self.principal(instance)
        _require_channel(platform, scope_id, channel_id)
        chosen = owner or next(iter(await self._owners(caller, platform)), None)
        if chosen is None:
            raise RelayError(
                Code.CONFLICT, "the instance has no linked owner there", mend="link one first"
            )
        await self._change(
            OPERATOR,
            lambda change: policies.claim_channel(
                change, caller, platform, scope_id, channel_id, chosen
            ),
        )

    async def release_scope(
        self, caller: Principal, platform: str, scope_id: str, channel_id: str
    ) -> None:
        """Release a channel."""
        _require_channel(platform, scope_id, channel_id)
        await self._change(
            _agent(caller),
            lambda change: policies.release_channel(change, caller, platform, scope_id, channel_id),
        )

    async def set_principal(
        self, caller: Principal, platform: str, policy: PrincipalPolicy, allow: Iterable[str] = ()
    ) -> None:
        """Set whose messages the caller receives in the channels that it holds."""
        listed = frozenset(allow)
        require_names(platform=platform)
        for user_id in listed:
            require_names(allow=user_id)
        await self._change(
            _agent(caller),
            lambda change: policies.set_principal(change, caller, platform, policy, listed),
        )

    async def set_relevance(
        self,
        caller: Principal,
        platform: str,
        policy: RelevancePolicy,
        *,
        by_operator: bool = False,
    ) -> RelevancePolicy | None:
        """Set which messages are relevant; the operator's policy, where that one stays."""
        require_names(platform=platform)
        for scope in policy.free_response_scopes:
            require_names(freeResponseScopes=scope)
        return await self._change(
            OPERATOR if by_operator else _agent(caller),
            lambda change: policies.set_relevance(
                change, caller, platform, policy, by_operator=by_operator
            ),
        )

    async def unpin_relevance(self, caller: Principal, platform: str) -> bool:
        """Let the caller's next declaration replace the operator's policy; whether there is one."""
        require_names(platform=platform)
        return await self._change(
            OPERATOR, lambda change: policies.unpin_relevance(change, caller, platform)
        )

    async def _owners(self, caller: Principal, platform: str) -> list[str]:
        return await self._changes.read(
            lambda connection: policies.list_owners(connection, caller.instance, platform)
        )

    async def _manager(
        self, caller: Principal, platform: str, scope_id: str, channel_id: str
    ) -> str:
        is_unknown = False
        for owner in await self._owners(caller, platform):
            visibility = self.directory.visibility
            manages = await visibility.can_manage(owner, platform, scope_id, channel_id)
            if manages:
                return owner
            is_unknown = is_unknown or manages is None
        if is_unknown:
            raise RelayError(
                Code.UNAVAILABLE,
                "the platform does not say now who manages this channel",
                where="channel_id",
                mend="ask again; if it stays so, see that the bot is in this channel",
            )
        raise RelayError(
            Code.FORBIDDEN,
            "no linked owner of the instance manages this channel",
            where="channel_id",
            mend="link an account that may manage it, then claim it again",
        )

    async def _revoke(self, instance: str, who: str, *, by_operator: bool) -> None:
        await self._change(
            who, lambda change: registry.revoke(change, instance, by_operator=by_operator)
        )
        await self.directory.settle()

    async def _change(self, who: str, work: Callable[[ControlChange], T]) -> T:
        return await self._changes.change(work, by=self._by or who)

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


def _open_key(platform: str, scope_id: str, channel_id: str) -> OpenKey:
    require_names(platform=platform, scope_id=scope_id or "-", channel_id=channel_id or "-")
    return OpenKey(platform, scope_id, channel_id)


def _require_channel(platform: str, scope_id: str, channel_id: str) -> None:
    # A chat without a scope has the scope ''.
    require_names(platform=platform, scope_id=scope_id or "-", channel_id=channel_id)
