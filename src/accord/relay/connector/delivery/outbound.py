"""What agents say: gated, made once, cut to size and recorded.

Owns the idempotency of a `requestId`. It is written down before the platform is asked and again
with the result; a request that was begun and whose result nobody wrote down has an unknown outcome,
and is never made again blindly. Never trusts what an action says of scope, user or tenant.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import structlog
from pydantic import SecretStr
from sqlalchemy.exc import IntegrityError

from accord import tracing
from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.relay.connector.control.directory import Directory, Principal
from accord.relay.connector.delivery import requests
from accord.relay.connector.delivery.lanes import Lanes
from accord.relay.connector.delivery.limits import Limits
from accord.relay.connector.delivery.requests import Asked, Wanted
from accord.relay.connector.platform import Platform
from accord.relay.connector.storing import Storage
from accord.relay.gate import Capability, EgressFacts, declined, may_send, neutralise
from accord.relay.wire.actions import (
    Action,
    BadAction,
    Edit,
    FollowUp,
    GetChatInfo,
    Result,
    Send,
    Typing,
)
from accord.relay.wire.frames import Outbound
from accord.relay.wire.source import GENERIC_PLATFORM
from accord.relay.wire.splitting import split
from accord.storage import StoreError
from accord.tracing import SpanKind

UNKNOWN: Final = Result(False, error="outcome unknown")
_FAILED: Final = "the connector failed; nothing is known to have happened"
_log = structlog.stdlib.get_logger(__name__)

Platforms = Mapping[tuple[str, str], Platform]
"""Every platform by its name and its bot's id."""


class OutboundDesk:
    """Does what agents ask for.

    Args:
        store: Where requests, chats and messages are.
        directory: Who holds which channel, and the vault.
        platforms: Who can do it.
        clock: Where the time comes from.
        source: The name of this process in the journal.
        limits: How long a platform may take, and how long a request is remembered.
        counts: What happened how often.
        mass_mentions: Platforms on which agents may mention everybody.
    """

    def __init__(
        self,
        store: Storage,
        directory: Directory,
        platforms: Platforms,
        clock: Clock,
        source: str,
        limits: Limits,
        counts: Counter[str],
        mass_mentions: frozenset[str] = frozenset(),
    ) -> None:
        self._store = store
        self._directory = directory
        self._platforms = platforms
        self._clock = clock
        self._source = source
        self._limits = limits
        self._counts = counts
        self._mass_mentions = mass_mentions
        self._under_way: dict[tuple[str, str], asyncio.Task[Result]] = {}
        self._lanes = Lanes()
        self._closed = False

    async def act(self, principal: Principal, outbound: Outbound) -> Result | None:
        """Do what was asked, at most once; never raises. None when this process is leaving."""
        if isinstance(outbound.action, BadAction):
            return Result(False, error=outbound.action.why)
        key = (principal.instance, outbound.request_id)
        task = self._under_way.get(key)
        if task is None:
            if self._closed:
                return None
            task = asyncio.create_task(self._guarded(principal, outbound, outbound.action))
            self._under_way[key] = task
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Begin nothing more, and let what was begun be recorded: it is answered for elsewhere."""
        self._closed = True
        if self._under_way:
            await asyncio.wait(self._under_way.values(), timeout=self._limits.finish_seconds)

    async def _guarded(self, principal: Principal, outbound: Outbound, action: Action) -> Result:
        place = action.session_key if isinstance(action, FollowUp) else action.chat_id
        with tracing.entry(
            "relay outbound", outbound.trace, op=action.op, instance=principal.instance
        ):
            try:
                async with self._lanes.turn((principal.instance, place)):
                    result = await self._act(principal, outbound, action)
            except (StoreError, IntegrityError) as error:
                _log.error("an action could not be recorded", reason=str(error))
                result = Result(False, error=_FAILED)
            tracing.tell(success=result.success)
        self._counts["actions done" if result.success else "actions not done"] += 1
        return result

    async def _act(self, principal: Principal, outbound: Outbound, action: Action) -> Result:
        with tracing.step("relay egress gate"):
            platform, facts, capability = await self._look_up(principal, outbound, action)
            if platform is None:
                return Result(False, error="there is no such platform here")
            verdict = may_send(action, facts)
            tracing.tell(verdict="send" if verdict.passed else "decline", rule=verdict.rule)
        if not verdict.passed:
            self._counts[f"declined {verdict.rule}"] += 1
            return declined(verdict)
        asked = Asked(
            principal.instance,
            outbound.request_id,
            requests.digest_of(action),
            int(self._clock.now() * 1000),
        )
        if isinstance(action, Typing | GetChatInfo):
            # Nothing that could happen twice.
            return await self._perform(platform, self._fleeting(platform, action), asked.key, None)
        oldest = asked.at - int(self._limits.request_seconds * 1000)
        known = await self._store.write(lambda c: requests.begin(c, asked, oldest))
        if known is not None:
            if known.digest != asked.digest:
                return Result(False, error="this requestId was used for another action")
            if known.result is not None:
                return known.result
            # What a capability does has no key: services take none with it.
            if not platform.idempotent or isinstance(action, FollowUp):
                return UNKNOWN
        result, sent = await self._say(platform, action, asked, capability)
        if result is UNKNOWN:
            return result
        trace = tracing.current()
        told = requests.Told(
            principal.tenant,
            platform.name,
            action,
            verdict.rule,
            self._source,
            None if trace is None else trace.id,
        )
        await self._store.write(lambda c: requests.finish(c, asked, result, sent, told))
        return result

    async def _look_up(
        self, principal: Principal, outbound: Outbound, action: Action
    ) -> tuple[Platform | None, EgressFacts, SecretStr | None]:
        facts = EgressFacts(principal.tenant, principal.instance, self._clock.now())
        # What an existing gateway took out of a forwarded request has no platform of its own.
        named = None if outbound.platform == GENERIC_PLATFORM else outbound.platform
        if isinstance(action, FollowUp):
            # A kind begins with the name of the platform that gave it: see `Found`.
            name = named or action.kind.partition(".")[0]
            selected = action.metadata.get("message_id")
            value = await self._directory.vault.resolve(
                principal,
                session_key=action.session_key,
                kind=action.kind,
                platform=name,
                message_id=selected if isinstance(selected, str) else None,
            )
            if value is not None:
                usable = Capability(principal.tenant, principal.instance, float("inf"))
                facts = replace(facts, capability=usable)
            return self._find(name, outbound.bot_id), facts, value
        held = {
            (name, scope)
            for name in {name for name, _ in self._platforms}
            for scope in await self._directory.held_scopes(principal.instance, name, action.chat_id)
        }
        wanted = Wanted(
            principal.tenant,
            principal.instance,
            named,
            action.chat_id,
            action.metadata.get("scope_id") if isinstance(action, Send | Edit) else None,
            action.message_id if isinstance(action, Edit) else None,
            frozenset(held),
        )
        found = await self._store.read(lambda c: requests.look_up(c, wanted))
        platform = self._find(found.platform or named, found.bot_id or outbound.bot_id)
        return platform, replace(facts, chat=found.chat, sent_by=found.sent_by), None

    def _find(self, name: str | None, bot_id: str | None) -> Platform | None:
        """The platform of this name, by its bot where there are several."""
        if name is not None and bot_id and (name, bot_id) in self._platforms:
            return self._platforms[name, bot_id]
        named = [each for (known, _), each in self._platforms.items() if name in (None, known)]
        return named[0] if len(named) == 1 else None

    async def _say(
        self, platform: Platform, action: Action, asked: Asked, capability: SecretStr | None
    ) -> tuple[Result, list[str]]:
        """Cut a text to size and perform each piece; the ids of what was sent."""
        pieces = self._pieces(platform, action)
        if not pieces:
            return Result(False, error="there is nothing to say"), []
        if isinstance(action, Edit) and len(pieces) > 1:
            return Result(False, error="the text does not fit into one message"), []
        sent: list[str] = []
        first: Result | None = None
        for number, piece in enumerate(pieces):
            key = asked.key if number == 0 else f"{asked.key}.{number}"
            result = await self._perform(platform, piece, key, capability)
            if result is UNKNOWN:
                return result, sent
            first = first or result
            if result.message_id is not None:
                sent.append(result.message_id)
            if not result.success:
                return (
                    result if number == 0 else replace(first, success=False, error=result.error)
                ), sent
        assert first is not None
        return first, sent

    def _pieces(self, platform: Platform, action: Action) -> list[Action]:
        if not isinstance(action, Send | Edit | FollowUp):
            return [action]
        return [replace(action, content=each) for each in self._cut(platform, action.content)]

    def _fleeting(self, platform: Platform, action: Typing | GetChatInfo) -> Typing | GetChatInfo:
        if not isinstance(action, Typing) or not action.draft:
            return action
        texts = self._cut(platform, action.draft)
        return replace(action, draft=texts[0] if texts else "")

    def _cut(self, platform: Platform, text: str) -> list[str]:
        """A text in messages that the platform takes, with nobody mentioned who must not be."""
        if platform.name not in self._mass_mentions:
            text = neutralise(text, platform.name)
        descriptor = platform.descriptor()
        return split(text, descriptor.max_message_length, descriptor.len_unit)

    async def _perform(
        self, platform: Platform, action: Action, key: str, capability: SecretStr | None
    ) -> Result:
        try:
            with tracing.step("platform send", SpanKind.CLIENT, platform=platform.name):
                async with asyncio.timeout(self._limits.outbound_seconds):
                    return await platform.perform(action, key, capability)
        except AccordError as error:
            return Result(False, error=str(error))
        except TimeoutError:
            self._counts["platform timeouts"] += 1
            return UNKNOWN
        except Exception as error:  # noqa: BLE001 - a platform's mistake must not end the socket
            # Its text may hold what a platform's library put there, such as a token in an address.
            _log.error("a platform failed", platform=platform.name, error=type(error).__name__)
            return UNKNOWN
