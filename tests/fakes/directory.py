"""The connector's directory in memory, for tests of delivery without the control half."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from pydantic import SecretStr
from sqlalchemy import Connection

from accord.relay.connector import (
    Capability,
    Directory,
    InboundEvent,
    Keyring,
    LinkReply,
    Principal,
    Revocations,
    StoreSecret,
    Vault,
    Waker,
)
from accord.relay.errors import Code, RelayError
from accord.relay.rules import (
    Facts,
    GateEvent,
    OpenPlace,
    SessionOverride,
    SessionRules,
    find_open,
    lookup_keys,
)


class MemoryVault(Vault):
    """Capabilities in memory."""

    def __init__(self, kept: list[Capability]) -> None:
        self.kept = kept

    def bind(self, connection: Connection, capabilities: Sequence[Capability]) -> None:
        """Keep capabilities; again changes nothing."""
        self.kept += [each for each in capabilities if each not in self.kept]

    async def resolve(
        self,
        principal: Principal,
        *,
        session_key: str,
        kind: str,
        platform: str | None = None,
        scope_id: str | None = None,
        message_id: str | None = None,
    ) -> SecretStr | None:
        """The newest one under this key or alias that is the caller's."""
        found = self._find(principal, session_key, kind, message_id)
        return None if found is None else found.value

    async def find_chat(
        self,
        principal: Principal,
        *,
        session_key: str,
        kind: str,
        message_id: str | None = None,
    ) -> str | None:
        """The chat of the same one, after a moment."""
        await asyncio.sleep(0)
        found = self._find(principal, session_key, kind, message_id)
        return None if found is None else found.chat_id

    def _find(
        self, principal: Principal, session_key: str, kind: str, message_id: str | None
    ) -> Capability | None:
        for each in reversed(self.kept):
            if (
                (each.tenant, each.instance) == (principal.tenant, principal.instance)
                and {each.session_key, each.alias} & {*lookup_keys(session_key)}
                and each.kind == kind
                and message_id in (None, each.message_id)
            ):
                return each
        return None


class MemoryWaker(Waker):
    """Wakes nobody."""

    def __init__(self) -> None:
        pass

    def forget(self, instance: str) -> None:
        """Nothing is being woken."""


class MemoryDirectory(Directory):
    """Who is who, in memory.

    Attributes:
        known: Facts for every event.
        tokens: Bearers and whose they are.
        woken: Instances that were poked, in order.
        kept: What was put into the vault.
    """

    def __init__(self) -> None:
        self.known = Facts()
        self.tokens: dict[str, Principal] = {}
        self.revoked: set[str] = set()
        self.woken: list[str] = []
        self.kept: list[Capability] = []
        self.vault = MemoryVault(self.kept)
        self.rules: dict[str, SessionRules] = {}
        self.overrides: dict[str, SessionOverride] = {}
        self.refused: dict[tuple[str, str, str], str] = {}
        self.wakeable: set[str] = set()
        self.held: set[tuple[str, str, str, str]] = set()
        self.chosen: dict[str, dict[str, str]] = {}
        self.replies: dict[str, LinkReply] = {}
        self.flushed: list[tuple[str, str | None]] = []
        self.revocations = Revocations(MemoryWaker())
        self.secret = StoreSecret(Keyring([bytes(32)]))

    def admit(self, instance: str, tenant: str = "t1") -> str:
        """Let an instance in; its bearer."""
        self.tokens[f"token-{instance}"] = Principal(tenant, instance, f"gw-{instance}", "secret")
        return f"token-{instance}"

    async def revoke(self, instance: str) -> None:
        """Let an instance in no more."""
        self.revoked.add(instance)
        self.revocations.publish(instance)
        await self.revocations.settle()

    async def authenticate(self, bearer: str | None) -> Principal:
        """Who shows this bearer."""
        principal = self.tokens.get(bearer or "")
        if principal is None:
            raise RelayError(Code.UNAUTHORIZED, "nobody knows this token")
        if principal.instance in self.revoked:
            raise RelayError(Code.FORBIDDEN, "this instance was revoked")
        return principal

    async def is_linked(self, platform: str, user_id: str | None) -> bool:
        """Whether an account is linked to any instance."""
        return any(
            instances and (user.platform, user.user_id) == (platform, user_id)
            for user, instances in self.known.bindings.items()
        )

    async def facts(self, inbound: InboundEvent) -> Facts:
        """What is known."""
        return self.known

    async def facts_of(self, event: GateEvent) -> Facts:
        """What is known."""
        return self.known

    async def is_open(self, principal: Principal, event: GateEvent) -> bool:
        """Whether an instance is open there."""
        found = find_open(event, self.known)
        return found == OpenPlace(principal.tenant, principal.instance)

    async def held_scopes(self, instance: str, platform: str, channel_id: str) -> tuple[str, ...]:
        """In which scopes an instance holds a channel."""
        wanted = (instance, platform, channel_id)
        return tuple(scope for *seat, scope in sorted(self.held) if tuple(seat) == wanted)

    async def linked(
        self, principal: Principal, platform: str, users: Collection[str] | None = None
    ) -> frozenset[str]:
        """Which of the users, or who at all, is linked to an instance."""
        bound = {
            user.user_id
            for user, instances in self.known.bindings.items()
            if (user.tenant, user.platform) == (principal.tenant, platform)
            and principal.instance in instances
        }
        return frozenset(bound if users is None else bound.intersection(users))

    async def front(self, principal: Principal, platform: str, bot_id: str) -> None:
        """Nothing depends on it here."""

    async def note_hello(
        self, principal: Principal, platform: str, bot_id: str, reason: str | None
    ) -> None:
        """Note it."""
        self.refused.pop((principal.instance, platform, bot_id), None)
        if reason is not None:
            self.refused[principal.instance, platform, bot_id] = reason

    async def has_wake_url(self, instance: str) -> bool:
        """Whether the test gave it one."""
        return instance in self.wakeable

    async def session_rules(self, instance: str) -> SessionRules:
        """How an instance's keys are written."""
        return self.rules.get(instance, SessionRules())

    async def choose_sessions(
        self,
        instance: str,
        rules: SessionRules,
        buffer_is_empty: Callable[[Connection], bool],
        declared: Collection[str] = (),
    ) -> bool:
        """Take a dialect while nothing was delivered under another."""
        known = self.rules.get(instance)
        if override := self.overrides.get(instance):
            rules = override.apply(rules, declared)
        if known is not None and known.dialect != rules.dialect:
            return False
        self.rules[instance] = rules
        return True

    async def profiles(self, instance: str) -> Mapping[str, str]:
        """Which agents answered last, by chat or session."""
        return self.chosen.get(instance, {})

    async def choose_profile(self, instance: str, place: str, profile: str | None) -> None:
        """Note who answered."""
        chosen = self.chosen.setdefault(instance, {})
        if chosen.get(place) != profile:
            chosen[place] = profile or ""
            self.chosen[instance] = {each: name for each, name in chosen.items() if name}
            self.known = replace(self.known)  # as after every change

    async def wake(self, instance: str) -> None:
        """Note the poke."""
        self.woken.append(instance)

    async def consume_link_dm(self, inbound: InboundEvent) -> LinkReply | None:
        """Answer the texts that it was given answers for."""
        return self.replies.get(inbound.event.text)

    def flush_visibility(self, platform: str, scope_id: str | None = None) -> None:
        """Note it."""
        self.flushed.append((platform, scope_id))

    def hint(self) -> None:
        """There is nothing that could be stale."""
