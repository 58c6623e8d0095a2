"""What `whatif policy` found, for programs and for people. It decides nothing."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from accord.pipeline.whatif.forms import Sample, count, share, table


@dataclass(frozen=True, slots=True)
class Changed:
    """Messages of one chat that one agent would newly receive, or no more, for the same reason.

    Attributes:
        delivered: Whether it would newly receive them.
        layer: The layer of the gate that makes the difference.
        rule_before: The rule that settled it then.
        rule_after: The rule that would settle it.
        reason: What that rule says.
        samples: The first and the last of the messages.
    """

    tenant: str | None
    instance: str
    platform: str
    scope_id: str | None
    chat_id: str
    delivered: bool
    layer: str
    rule_before: str
    rule_after: str
    reason: str
    messages: int
    samples: tuple[Sample, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "samples"}
        return {**plain, "samples": [each.to_dict() for each in self.samples]}


@dataclass(frozen=True, slots=True)
class PolicyWhatIf:
    """What a proposed policy would have changed; every number counts messages for one agent each.

    Attributes:
        unreadable: Records that the gate cannot read.
        drifted: Decisions that today's gate would not repeat, policy or no policy; they are left
            out of the other numbers.
        groups: How many kinds of change there are.
        changes: These, the largest first, as many as fit.
    """

    newly_delivered: int
    newly_dropped: int
    still_delivered: int
    still_dropped: int
    unreadable: int
    drifted: int
    groups: int
    changes: tuple[Changed, ...]

    @property
    def considered(self) -> int:
        """Messages about which an agent was considered."""
        changed = self.newly_delivered + self.newly_dropped
        return changed + self.still_delivered + self.still_dropped

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "changes"}
        changes = [each.to_dict() for each in self.changes]
        return {"considered": self.considered, **plain, "changes": changes}

    def text(self) -> str:
        """For a person."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield "If this policy had been in force"
        yield ""
        if not self.considered:
            yield "No message was recorded about which any agent was considered."
        elif not self.changes:
            yield f"Nothing would have changed for {count(self.considered, 'message')}."
        else:
            yield from table(
                ("", "messages", "share"),
                [(name, number, share(number, self.considered)) for name, number in self._sums()],
            )
            yield from ("", "By agent")
            yield from table(("agent", "newly delivered", "newly dropped"), self._by_agent())
            yield from ("", "By chat, and the layer that decides")
            yield from table(
                ("agent", "chat", "change", "messages", "layer", "because"),
                [
                    (
                        each.instance,
                        "/".join(filter(None, (each.platform, each.scope_id, each.chat_id))),
                        "+ delivered" if each.delivered else "- dropped",
                        each.messages,
                        each.layer,
                        each.reason,
                    )
                    for each in self.changes
                ],
            )
            yield from ("", "For example")
            yield from (f"  {each.samples[0]}: {_story(each)}" for each in self.changes[:5])
        if self.drifted or self.unreadable:
            yield ""
        if self.drifted:
            what = count(self.drifted, "decision was", "decisions were")
            yield f"{what} made by a gate that decided otherwise than today's, and left out."
        if self.unreadable:
            yield f"{count(self.unreadable, 'record')} could not be read, and left out."

    def _sums(self) -> tuple[tuple[str, int], ...]:
        return (
            ("newly delivered", self.newly_delivered),
            ("newly dropped", self.newly_dropped),
            ("delivered as before", self.still_delivered),
            ("dropped as before", self.still_dropped),
        )

    def _by_agent(self) -> list[tuple[str, int, int]]:
        more: Counter[str] = Counter()
        less: Counter[str] = Counter()
        for each in self.changes:
            (more if each.delivered else less)[each.instance] += each.messages
        moved = more + less
        return [(name, more[name], less[name]) for name, _ in moved.most_common()]


def _story(changed: Changed) -> str:
    then, now = ("delivered", "dropped") if not changed.delivered else ("dropped", "delivered")
    return f"{then} by {changed.rule_before}, would be {now} by {changed.rule_after}"
