"""What `whatif revoke` found, for programs and for people. It judges nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from accord.pipeline.whatif.forms import count, cut, table

_NAMES: Final = {
    "chat": "messages",
    "corpora": "documents of corpora",
    "files": "holdings of files",
    "manifests": "manifests",
    "market": "posts",
}


@dataclass(frozen=True, slots=True)
class Turned:
    """Events of one author that would be judged otherwise, for the same reason.

    Attributes:
        status: What became of them, by `rule`.
        becomes: What would, by `rule_after`, and `reason` says why.
        first: The id of the first of them, in the order of the log.
        last: That of the last.
    """

    author: str
    event_type: str
    status: str
    rule: str
    becomes: str
    rule_after: str
    reason: str
    events: int
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Things of one kind that the state would no longer have, and the name of one of them."""

    section: str
    items: int
    sample: str


@dataclass(frozen=True, slots=True)
class RevokeWhatIf:
    """What a revocation would do.

    Attributes:
        last_seq: The number of the target's last event that would count, of `known_seq`.
        stands: Whether the fold would accept the revocation, by `rule`; `reason` says why.
        signatures: How many members must sign it.
        able: Who may.
        turned: Events that would be judged otherwise, the most first.
        members: Others who would no longer belong, because somebody let them in who could not.
        lost: What the state would lose.
    """

    community_id: str
    target: str
    last_seq: int
    known_seq: int
    stands: bool
    rule: str
    reason: str
    signatures: int
    able: tuple[str, ...]
    turned: tuple[Turned, ...]
    members: tuple[str, ...]
    lost: tuple[Lost, ...]

    @property
    def voided(self) -> int:
        """Events that stand, and would not."""
        return sum(each.events for each in self.turned if each.status == "accepted")

    @property
    def of_others(self) -> int:
        """Those among them that others wrote."""
        return self.voided - sum(
            each.events
            for each in self.turned
            if each.status == "accepted" and each.author == self.target
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        return {
            **plain,
            "able": list(self.able),
            "members": list(self.members),
            "voided": self.voided,
            "of_others": self.of_others,
            "turned": [
                {name: getattr(each, name) for name in each.__slots__} for each in self.turned
            ],
            "lost": [{name: getattr(each, name) for name in each.__slots__} for each in self.lost],
        }

    def text(self) -> str:
        """For a person."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"If {self.target} were revoked after its event {self.last_seq} of {self.known_seq}"
        yield ""
        if not self.stands:
            yield f"The revocation would not stand: {self.reason} [{self.rule}]."
            able = count(len(self.able), "member may", "members may")
            yield f"It needs {count(self.signatures, 'signature')}; {able} sign."
            return
        signing = f"{self.signatures} of {count(len(self.able), 'member')} who may sign"
        yield f"It would stand with the signatures of {signing}."
        if not self.turned:
            yield "Nothing that was said before would be void; it could say nothing more."
        else:
            others = f", {self.of_others:,} of them by others" if self.of_others else ""
            yield f"{count(self.voided, 'event')} that count now would not{others}."
            yield from ("", "Events")
            yield from table(
                ("author", "type", "events", "now", "then", "because"),
                [
                    (
                        "the member itself" if each.author == self.target else _short(each.author),
                        each.event_type,
                        each.events,
                        each.status,
                        each.becomes,
                        each.reason,
                    )
                    for each in self.turned
                ],
            )
        if self.members:
            yield from ("", "Who would no longer belong either")
            yield from table(("member",), [(each,) for each in self.members])
        if self.lost:
            yield from ("", "What the community would lose")
            yield from table(
                ("what", "how many", "for example"),
                [(_NAMES.get(e.section, e.section), e.items, e.sample) for e in self.lost],
            )


def _short(node_id: str) -> str:
    return cut(node_id.removeprefix("ed25519:"), 12)
