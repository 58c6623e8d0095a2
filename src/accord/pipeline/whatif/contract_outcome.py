"""What `whatif contract` found, for programs and for people. It judges nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from accord.contracts import Report
from accord.pipeline.whatif.calls import written_by
from accord.pipeline.whatif.forms import Sample, count, cut, share, table

_MOST_WITNESSES: Final = 5


@dataclass(frozen=True, slots=True)
class Surface:
    """One part of one surface: how its recorded payloads fare.

    Attributes:
        untouched: Calls under contracts that said the same about this payload.
        unrecorded: Calls whose payload policy kept out, so that nobody can say.
    """

    kind: str
    surface: str
    part: str
    kept: int = 0
    failed: int = 0
    gone: int = 0
    unrecorded: int = 0
    untouched: int = 0

    @property
    def name(self) -> str:
        """As people write it."""
        return f"{self.kind} {self.surface} {self.part}"

    @property
    def failing(self) -> int:
        """Calls that would have failed."""
        return self.failed + self.gone

    @property
    def replayed(self) -> int:
        """Calls of which it can be said how they fare."""
        return self.kept + self.failing


@dataclass(frozen=True, slots=True)
class Failure:
    """Calls that would have failed alike: the same surface, caller and rule.

    Attributes:
        writer: Who wrote the payload and would have to change: `caller` or `service`.
        samples: The first and the last of them, with their payloads where these are short.
    """

    kind: str
    surface: str
    part: str
    service: str
    caller: str
    caller_contract: str | None
    rule: str
    pointer: str | None
    message: str
    calls: int
    samples: tuple[Sample, ...]

    @property
    def writer(self) -> str:
        """Who wrote what fails."""
        return written_by(self.part)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "samples"}
        samples = [each.to_dict() for each in self.samples]
        return {**plain, "writer": self.writer, "samples": samples}


@dataclass(frozen=True, slots=True)
class ContractWhatIf:
    """What a proposed contract would have meant for what was recorded.

    Attributes:
        against: The digest that the static verdict compares with: of the others, the one taken up
            last.
        static: That verdict; None where history knows no such contract.
        surfaces: Every part of every surface that was called.
        failures: Groups of failing calls, the largest first, at most `MOST_GROUPS`.
        callers: How many distinct callers have a call that fails.
    """

    contract_id: str
    proposed: str
    against: str | None
    static: Report | None
    surfaces: tuple[Surface, ...]
    failures: tuple[Failure, ...]
    callers: int

    @property
    def calls(self) -> int:
        """Every recorded call of the contract."""
        return self.replayed + sum(each.unrecorded + each.untouched for each in self.surfaces)

    @property
    def replayed(self) -> int:
        """Calls that the proposal touches, and of which it can be said how they fare."""
        return sum(each.replayed for each in self.surfaces)

    @property
    def failing(self) -> int:
        """Calls that would have failed."""
        return sum(each.failing for each in self.surfaces)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "contract_id": self.contract_id,
            "proposed": self.proposed,
            "against": self.against,
            "static": None if self.static is None else self.static.to_dict(),
            "calls": self.calls,
            "replayed": self.replayed,
            "failing": self.failing,
            "callers": self.callers,
            "surfaces": [
                {name: getattr(each, name) for name in each.__slots__} for each in self.surfaces
            ],
            "failures": [each.to_dict() for each in self.failures],
        }

    def text(self) -> str:
        """For a person."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"If {self.contract_id} were {cut(self.proposed, 12)}"
        yield ""
        if not self.calls:
            yield "No call of this contract was recorded, so history has nothing to say."
        elif not self.replayed:
            yield f"It touches none of the {count(self.calls, 'recorded payload')}."
        elif not self.failing:
            yield f"All {count(self.replayed, 'payload')} that it touches would have passed."
        else:
            of = f"{count(self.failing, 'call')} of {self.replayed:,} that it touches"
            who = count(self.callers, "caller")
            yield f"{of} would have failed ({share(self.failing, self.replayed)}), of {who}."
        touched = [each for each in self.surfaces if each.replayed or each.unrecorded]
        if touched:
            yield from ("", "Surfaces")
            yield from table(
                ("surface", "passed", "failed", "gone", "not recorded"),
                [(s.name, s.kept, s.failed, s.gone, s.unrecorded) for s in touched],
            )
        if self.failures:
            yield from ("", "Who would have failed")
            yield from table(
                ("caller", "surface", "to change", "calls", "why"),
                [
                    (
                        each.caller,
                        f"{each.surface} {each.part}",
                        each.writer,
                        each.calls,
                        f"{each.pointer or ''} {each.message}".strip(),
                    )
                    for each in self.failures
                ],
            )
            yield from ("", "Witnesses")
            for each in self.failures[:_MOST_WITNESSES]:
                yield f"  {each.samples[0]}, {each.caller}"
                yield f"    {each.samples[0].excerpt}"
        yield ""
        if self.static is None:
            yield "There is no earlier contract of this lineage to compare with."
        else:
            yield f"The static verdict, against {cut(self.against or '', 12)}:"
            yield from (f"  {line}" for line in self.static.text().splitlines())
