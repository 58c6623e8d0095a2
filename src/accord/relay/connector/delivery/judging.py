"""What the gate said, and the record of it, kept for events that differ in nothing but their id.

The gate is pure: the same facts and the same event give the same decision. Most events repeat what
somebody says in the same place, so each is judged once until the facts change. Owns no rule.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace

import orjson

from accord.relay.gate import Decision, Event, Facts, decide, to_record

_KEPT = 4096
# Stands for the id in a record; no JSON text holds it otherwise.
_MARK = "\x00id\x00"
_WRITTEN = orjson.dumps(_MARK).decode()


@dataclass(frozen=True, slots=True)
class Judgement:
    """A decision with its record but for the event's id."""

    facts: Facts
    decision: Decision
    before: str
    after: str

    def record(self, event_id: str) -> str:
        """The record of one event, as JSON."""
        return f"{self.before}{orjson.dumps(event_id).decode()}{self.after}"


class Judge:
    """Decides, or remembers."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Event, Judgement] = OrderedDict()

    def judge(self, event: Event, facts: Facts) -> Judgement:
        """What the gate says of an event by these facts."""
        known = self._kept.get(event)
        # The very same facts: whoever changes them makes new ones.
        if known is not None and known.facts is facts:
            return known
        decision = decide(event, facts)
        marked = to_record(replace(event, event_id=_MARK), facts, decision)
        before, _, after = orjson.dumps(marked).decode().partition(_WRITTEN)
        made = self._kept[event] = Judgement(facts, decision, before, after)
        self._kept.move_to_end(event)
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return made
