"""A proposed policy: the bodies that a connector's management routes would be sent, in one file.

Owns the form of that file and nothing of what the members mean: they are read by the functions that
read them live. Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

from accord.kernel import canonical
from accord.pipeline.errors import PipelineError
from accord.relay.errors import RelayError
from accord.relay.gate import Facts, Principal, PrincipalPolicy, Seat
from accord.relay.wire import RelevancePolicy
from accord.relay.wire.members import bad, texts

RELEVANCE: Final = "/relay/policy"
PRINCIPAL: Final = "/manage/principal"

_POLICIES: Final = {each.value: each for each in PrincipalPolicy}
_WHO: Final = ("platform", "instanceId", "tenant")


class Declared(NamedTuple):
    """What an agent would have declared; None where it would have said nothing."""

    relevance: RelevancePolicy | None = None
    principal: Principal | None = None


class Declaration(NamedTuple):
    """One body: whose it would be, and what it says. Without an instance it is everybody's."""

    platform: str
    instance: str | None
    tenant: str | None
    says: Declared

    def concerns(self, seat: Seat) -> bool:
        """Whether an instance on a platform would have made it."""
        return (
            self.platform == seat.platform
            and self.instance in (None, seat.instance)
            and self.tenant in (None, seat.tenant)
        )


@dataclass(frozen=True)
class ProposedPolicy:
    """Declarations by route, as canonical JSON; of several about one agent the last counts."""

    text: bytes

    @cached_property
    def declarations(self) -> tuple[Declaration, ...]:
        """The bodies, read."""
        return tuple(_read(canonical.decode(self.text)))

    def applied(self, facts: Facts, seats: Iterable[Seat]) -> Facts:
        """What would have been known, had these agents declared this."""
        relevance, principals = dict(facts.relevance), dict(facts.principals)
        for seat in seats:
            said = self._by_seat.get(seat)
            if said is None:
                said = self._by_seat[seat] = self._of(seat)
            if said.relevance is not None:
                relevance[seat] = said.relevance
            if said.principal is not None:
                principals[seat] = said.principal
        return replace(facts, relevance=relevance, principals=principals)

    def _of(self, seat: Seat) -> Declared:
        relevance, principal = None, None
        for each in self.declarations:
            if each.concerns(seat):
                relevance = each.says.relevance or relevance
                principal = each.says.principal or principal
        return Declared(relevance, principal)

    @cached_property
    def _by_seat(self) -> dict[Seat, Declared]:
        return {}


def read_policy(raw: bytes | str) -> ProposedPolicy:
    """Read a proposed policy.

    Raises:
        PipelineError: It is no such file; it says where and what.
    """
    try:
        value = canonical.decode(raw)
    except canonical.CanonicalError as error:
        raise PipelineError(
            f"the policy is not strict JSON: {error.what}", where=error.where
        ) from None
    for _ in _read(value):
        pass
    return ProposedPolicy(canonical.encode(value))


def _read(value: Any) -> Iterator[Declaration]:
    if not isinstance(value, dict) or not value:
        raise _bad("a policy is an object with a list of bodies for each route", "")
    for route, bodies in value.items():
        if route not in _ROUTES:
            raise _bad(f"expected one of {', '.join(_ROUTES)}", f"/{route[:80]}")
        if not isinstance(bodies, list):
            raise _bad("expected a list of bodies", route)
        for place, body in enumerate(bodies):
            where = f"{route}[{place}]"
            if not isinstance(body, dict):
                raise _bad("expected an object", where)
            platform, instance, tenant = (_name(body, member, where) for member in _WHO)
            if platform is None:
                raise _bad("the member platform is missing", where)
            try:
                says = _ROUTES[route](body)
            except RelayError as error:
                raise _bad(error.what, f"{where}{error.where or ''}") from None
            yield Declaration(platform, instance, tenant, says)


def _name(body: Mapping[str, Any], member: str, where: str) -> str | None:
    value = body.get(member)
    if value is not None and (not isinstance(value, str) or not value):
        raise _bad("expected an id", f"{where}/{member}")
    return value


def _relevance(body: Mapping[str, Any]) -> Declared:
    return Declared(relevance=RelevancePolicy.from_dict(body))


def _principal(body: Mapping[str, Any]) -> Declared:
    named = body.get("policy")
    policy = _POLICIES.get(named) if isinstance(named, str) else None
    if policy is None:
        raise bad(f"expected one of {', '.join(_POLICIES)}", where="/policy")
    return Declared(principal=Principal(policy, frozenset(texts(body, "allow"))))


_ROUTES: Final[Mapping[str, Callable[[Mapping[str, Any]], Declared]]] = {
    RELEVANCE: _relevance,
    PRINCIPAL: _principal,
}

_MEND: Final = 'write {"/relay/policy": [{"platform": "chat", "requireAddress": true}]} or the like'


def _bad(what: str, where: str) -> PipelineError:
    return PipelineError(what, where=where or None, mend=_MEND)
