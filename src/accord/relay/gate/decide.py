"""Who receives an event: section 4 of the notes on the specification.

`decide` composes the layers and returns what each of them said. Four questions are about the event
as a whole, and a "no" there leaves those after it unreached. Three are about each candidate, and
all three are always answered. `deliver <=> authorized and visible and relevant`; whatever fails
says no.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from accord.relay.gate import layers, verdicts
from accord.relay.gate.facts import Event, Facts
from accord.relay.gate.verdicts import NOT_REACHED, Layer, Verdict, failed

_OF_THE_EVENT: Final = (Layer.LINK, Layer.ORIGIN, Layer.TENANT, Layer.CANDIDATES)


class Candidate(NamedTuple):
    """An instance that may be meant, with what each layer said about it."""

    instance: str
    authority: Verdict
    visibility: Verdict
    relevance: Verdict

    @property
    def verdicts(self) -> tuple[Verdict, Verdict, Verdict]:
        """What the layers said, in their order."""
        return self.authority, self.visibility, self.relevance

    @property
    def delivers(self) -> bool:
        """Whether it receives the event."""
        return self.authority.passed and self.visibility.passed and self.relevance.passed


@dataclass(frozen=True, slots=True)
class Decision:
    """Who receives an event, and why.

    Attributes:
        tenant: The one tenant that it belongs to; None when there is none.
        verdicts: Of link, origin, tenant and candidates, in this order.
        candidates: Each instance that was considered.
    """

    tenant: str | None
    verdicts: tuple[Verdict, ...]
    candidates: tuple[Candidate, ...] = ()

    @property
    def deliveries(self) -> tuple[str, ...]:
        """The instances, all of `tenant`, that receive the event."""
        return tuple([each.instance for each in self.candidates if each.delivers])

    @property
    def refusal(self) -> Verdict | None:
        """What kept it from everybody; of several candidates, what kept it from the first.

        None where somebody receives it.
        """
        if any(each.delivers for each in self.candidates):
            return None
        said = [*self.verdicts, *(v for each in self.candidates for v in each.verdicts)]
        return next(verdict for verdict in said if not verdict.passed)

    @property
    def wakes(self) -> tuple[str, ...]:
        """The instances that are woken if they sleep: exactly those that receive the event."""
        return self.deliveries


def decide(event: Event, facts: Facts) -> Decision:
    """Decide who receives an event; it never raises."""
    if event.link is not None:
        return _nobody(None, verdicts.CONSUMED)
    if layers.is_echo(event):
        return _nobody(None, verdicts.NOT_A_LINK, verdicts.OWN_ECHO)
    before = (verdicts.NOT_A_LINK, verdicts.ANOTHER_AUTHOR)
    try:
        tenant, routed = layers.find_tenant(event, facts)
    except Exception as error:  # noqa: BLE001 (any failure of a layer is its "no")
        tenant, routed = None, failed(Layer.TENANT, error)
    if tenant is None:
        return _nobody(None, *before, routed)
    try:
        found, some = layers.find_candidates(event, facts, tenant)
    except Exception as error:  # noqa: BLE001 (any failure of a layer is its "no")
        found, some = (), failed(Layer.CANDIDATES, error)
    if not some.passed:
        return _nobody(tenant, *before, routed, some)
    candidates = tuple([_judge(event, facts, claim) for claim in found])
    return Decision(tenant, (*before, routed, some), candidates)


def _judge(event: Event, facts: Facts, claim: layers.Claim) -> Candidate:
    try:
        authority = layers.authority(event, facts, claim)
    except Exception as error:  # noqa: BLE001 (any failure of a layer is its "no")
        authority = failed(Layer.AUTHORITY, error)
    try:
        visibility = layers.visibility(event, facts, claim)
    except Exception as error:  # noqa: BLE001 (any failure of a layer is its "no")
        visibility = failed(Layer.VISIBILITY, error)
    try:
        relevance = layers.relevance(event, facts, claim)
    except Exception as error:  # noqa: BLE001 (any failure of a layer is its "no")
        relevance = failed(Layer.RELEVANCE, error)
    return Candidate(claim.seat.instance, authority, visibility, relevance)


def _nobody(tenant: str | None, *said: Verdict) -> Decision:
    unreached = [NOT_REACHED[layer] for layer in _OF_THE_EVENT[len(said) :]]
    return Decision(tenant, (*said, *unreached))
