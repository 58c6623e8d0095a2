"""The traffic of a generated relay: what came, what the gate said, what was delivered and answered.

The decisions are the gate's own, made from the facts of `relay_world`. Agents fall asleep when
nothing comes for a while, so some messages wait until one has woken up; a few are never taken.
"""

import heapq
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from blake3 import blake3

from accord.kernel import canonical
from accord.kernel.ulid import UlidSource
from accord.pipeline.generate.arrivals import Draft
from accord.pipeline.generate.chronicle import Calendar
from accord.pipeline.generate.relay_world import (
    PLATFORMS,
    REMARKS,
    WEIGHTS,
    Remark,
    event_of,
    name_of,
    world,
)
from accord.pipeline.streams import (
    RELAY_DECISIONS,
    RELAY_DELIVERIES,
    RELAY_INBOUND,
    RELAY_OUTBOUND,
)
from accord.relay.gate import Capability, Chat, EgressFacts, Event, decide, may_send, to_record
from accord.relay.wire.actions import Action, Edit, FollowUp, Send, write_action

Told = tuple[str, Draft]
"""A stream, and a record of it."""

_ASLEEP_SECONDS: Final = 900.0
_GIVEN_UP_SECONDS: Final = 86_400.0
_BATCH_SECONDS: Final = 0.2


class Traffic:
    """The traffic of one connector.

    Args:
        chance: Decides everything.
    """

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._calendar = Calendar()
        self._ids = UlidSource(self._calendar, lambda: chance.getrandbits(80))
        self._facts = world()
        self._heads: dict[str, int] = {}
        self._awake: dict[str, float] = {}
        # Rows that will be acknowledged or given up, by when.
        self._due: list[tuple[float, str, int, Event, str, bool]] = []
        self._sent = 0

    def run(self, messages: int) -> Iterator[Told]:
        """So many messages, and everything that they lead to."""
        for number in range(messages):
            # Nights are quiet: now and then an hour passes before somebody writes again.
            pause = self._chance.expovariate(1 / 20)
            until = self._calendar.time + (3600 if self._chance.random() < 0.01 else pause)
            yield from self._settled(until)
            self._calendar.time = until
            tenant = self._chance.randrange(len(PLATFORMS))
            remark = self._chance.choices(REMARKS, WEIGHTS)[0]
            yield from self._came(tenant, remark, f"m{number}")
        yield from self._settled(self._calendar.time + 2 * _GIVEN_UP_SECONDS)

    def _came(self, tenant: int, remark: Remark, event_id: str) -> Iterator[Told]:
        event = event_of(tenant, remark, event_id)
        decision = decide(event, self._facts)
        name, now = self._ids.new(), self._now()
        yield RELAY_INBOUND, Draft(name, now, self._inbound(event, remark))
        record = to_record(event, self._facts, decision)
        yield RELAY_DECISIONS, Draft(name, now, canonical.encode(record).decode())
        pending = [[each, self._queued(each, event, name), name] for each in decision.deliveries]
        if pending:
            yield self._delivery({"pending": pending})

    def _inbound(self, event: Event, remark: Remark) -> str:
        text = f"{remark.author} says {self._chance.getrandbits(32)}".encode()
        kind = "thread" if remark.thread else "channel"
        return canonical.encode(
            {
                "platform": event.platform,
                "bot_id": event.bot_id,
                "event_id": event.event_id,
                "kind": "passthrough" if self._chance.random() < 0.01 else "inbound",
                "scope_id": event.scope_id,
                "chat_id": event.chat_id,
                "chat_type": "dm" if event.is_dm else kind,
                "thread_id": remark.thread,
                "user_id": event.author,
                "message_type": self._chance.choice(("text", "text", "text", "photo", "voice")),
                "text_digest": blake3(text).hexdigest(),
                "text_bytes": len(text),
            }
        ).decode()

    def _queued(self, instance: str, event: Event, name: str) -> int:
        """Number a row of an agent's buffer, and say when it will be done with."""
        now = self._calendar.time
        seq = self._heads[instance] = self._heads.get(instance, 0) + 1
        is_asleep = now - self._awake.get(instance, 0.0) > _ASLEEP_SECONDS
        self._awake[instance] = now
        is_lost = self._chance.random() < 0.005
        wait = self._chance.uniform(4, 40) if is_asleep else self._chance.expovariate(1 / 0.4)
        due = now + (_GIVEN_UP_SECONDS if is_lost else wait)
        heapq.heappush(self._due, (due, instance, seq, event, name, is_lost))
        return seq

    def _settled(self, until: float) -> Iterator[Told]:
        """What is acknowledged or given up by then, in batches as a connector writes them."""
        while self._due and self._due[0][0] <= until:
            self._calendar.time = self._due[0][0]
            batch = []
            while self._due and self._due[0][0] <= self._calendar.time + _BATCH_SECONDS:
                batch.append(heapq.heappop(self._due))
            acked = [[each[1], each[2], each[2]] for each in batch if not each[5]]
            if acked:
                yield self._delivery({"acked": sorted(acked)})
            for _, instance, seq, event, name, is_lost in batch:
                if is_lost:
                    yield from self._given_up(instance, seq, event, name)
                elif self._chance.random() < 0.7:
                    yield RELAY_OUTBOUND, self._answer(instance, event)

    def _given_up(self, instance: str, seq: int, event: Event, name: str) -> Iterator[Told]:
        yield self._delivery({"dead": [[instance, seq, seq]], "reason": "waited too long"})
        if self._chance.random() < 0.5:
            yield self._delivery({"dropped": [[instance, seq, seq]]})
        else:
            again = self._queued(instance, event, name)
            yield self._delivery({"pending": [[instance, again, name]]})

    def _answer(self, instance: str, event: Event) -> Draft:
        """What an agent does about a message, by the rule that lets it."""
        self._sent += 1
        tenant = name_of(PLATFORMS.index(event.platform))
        action = self._action(event)
        now = self._calendar.time
        held = instance if event.chat_id == "general" else None
        facts = EgressFacts(
            tenant,
            instance,
            now,
            Chat(tenant, event.scope_id, None, held, now - 1),
            instance,
            Capability(tenant, instance, now + 900),
        )
        success = self._chance.random() < 0.97
        chat_id = None if isinstance(action, FollowUp) else action.chat_id
        body = {
            "tenant": tenant,
            "instance": instance,
            "platform": event.platform,
            "op": action.op,
            "chat_id": chat_id,
            "rule": may_send(action, facts).rule,
            "success": success,
            "messages": self._chance.choice((1, 1, 1, 2)) if success else 0,
            "action_digest": blake3(canonical.encode(write_action(action))).hexdigest(),
        }
        name = f"{instance}/r{self._sent}/{self._now()}"
        return Draft(name, self._now(), canonical.encode(body).decode())

    def _action(self, event: Event) -> Action:
        text, turn = f"Answer {self._sent}.", self._chance.random()
        if turn < 0.06:
            return Edit(event.chat_id, f"a{self._sent}", text)
        if turn < 0.1:
            return FollowUp(f"agent:main:{event.chat_id}", f"{event.platform}.reply_token", text)
        return Send(event.chat_id, text)

    def _delivery(self, changes: dict[str, Any]) -> Told:
        body = canonical.encode(changes).decode()
        return RELAY_DELIVERIES, Draft(self._ids.new(), self._now(), body)

    def _now(self) -> int:
        return int(self._calendar.time * 1000)
