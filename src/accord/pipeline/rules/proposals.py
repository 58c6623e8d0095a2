"""Proposed contracts, policies and revocations, as what-ifs apply them to recorded history.

A proposal is plain JSON text, so that it can be pickled to the executors.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any, Final, NamedTuple

from accord.community.rules.event import Event, read_event
from accord.community.rules.formats import Level, write_signature
from accord.community.rules.membership import signatures_needed
from accord.contracts.compatibility.differences import strip_annotations
from accord.contracts.compatibility.side import Side, read_side
from accord.kernel import canonical
from accord.kernel.schema import Schema, compile_schema
from accord.kernel.signing import SIGNATURE_SIZE
from accord.pipeline.errors import PipelineError
from accord.pipeline.rules.checks import PayloadPath, payload_path
from accord.relay.errors import RelayError
from accord.relay.rules.gate import (
    Facts,
    PolicyKey,
    PrincipalPolicy,
    PrincipalRule,
    RelevancePolicy,
)
from accord.relay.rules.members import bad, texts

MOST_SHOWN: Final = 4096
"""The longest payload shown as an example, in bytes of canonical JSON."""

_INDEX: Final = re.compile(r"/[0-9]+(?=/|$)")
_BY_CALLERS: Final = ("input", "payload", "signal")


class CallOutcome(Enum):
    """The outcome of a recorded payload under the proposal."""

    KEPT = "kept"
    FAILED = "failed"
    GONE = "gone"
    UNRECORDED = "unrecorded"
    UNTOUCHED = "untouched"


class JudgedCall(NamedTuple):
    """An outcome with its reason."""

    fate: CallOutcome
    # The broken schema rule, or the part of the contract that is missing; None if valid.
    rule: str | None = None
    pointer: str | None = None  # where in the payload, with indices of arrays as `*`
    message: str | None = None  # a sentence, without any value of the payload


_UNTOUCHED: Final = JudgedCall(CallOutcome.UNTOUCHED)
_KEPT: Final = JudgedCall(CallOutcome.KEPT)
_UNRECORDED: Final = JudgedCall(CallOutcome.UNRECORDED)


@dataclass(frozen=True)
class ProposedContract:
    """A proposed contract and those under which calls were recorded."""

    manifest: bytes  # the proposed manifest, as canonical JSON
    recorded: Mapping[str, bytes]  # recorded manifests by digest, as canonical JSON
    _known: dict[tuple[str, PayloadPath], Schema | JudgedCall] = field(
        default_factory=dict, repr=False
    )

    def __reduce__(self) -> tuple[Any, ...]:
        return ProposedContract, (self.manifest, self.recorded)

    def judge(self, call: Mapping[str, Any]) -> JudgedCall:
        """The outcome of a call that was valid under its own contract."""
        key = call["digest"], payload_path(call["kind"], call["surface"], call["part"])
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._look_up(*key)
        if isinstance(found, JudgedCall):
            return found
        if "payload" not in call:
            return _UNRECORDED
        payload = call["payload"]
        if found.is_valid(payload):
            return _KEPT
        first = found.findings(payload)[0]
        pointer = _INDEX.sub("/*", first.pointer)
        return JudgedCall(CallOutcome.FAILED, first.rule, pointer, first.message)

    def _look_up(self, digest: str, place: PayloadPath) -> Schema | JudgedCall:
        """The schema to judge by, or the outcome of every call of this digest at this place."""
        schema = self._proposed.payloads.get(place)
        before = self._sides[digest].payloads.get(place) if digest in self._sides else None
        if schema is None and before is None and digest in self._sides and self._stays(place):
            return _UNTOUCHED  # such as the end of a job without a declared result
        if schema is None:
            return self._gone(place)
        if before is not None and _means(before) == _means(schema):
            return _UNTOUCHED
        return compile_schema(canonical.decode(schema))

    def _stays(self, place: PayloadPath) -> bool:
        return place[1] in self._proposed.section(place[0])

    def _gone(self, place: PayloadPath) -> JudgedCall:
        if self._stays(place):
            part = " ".join(place[2:4])
            return JudgedCall(
                CallOutcome.GONE, "part.gone", None, f"the surface has no {part} any more"
            )
        return JudgedCall(
            CallOutcome.GONE, "surface.gone", None, "the contract has no such surface any more"
        )

    @cached_property
    def _proposed(self) -> Side:
        return read_side(canonical.decode(self.manifest), "proposed")

    @cached_property
    def _sides(self) -> dict[str, Side]:
        return {
            digest: read_side(canonical.decode(text), "recorded")
            for digest, text in self.recorded.items()
        }


def written_by(part: str) -> str:
    """Who wrote the payload: `caller` or `service`."""
    return "caller" if part.partition(":")[0] in _BY_CALLERS else "service"


def witness(payload: Any) -> str | None:
    """A payload as an example; None if it is too long."""
    text = canonical.encode(payload)
    return text.decode() if len(text) <= MOST_SHOWN else None


def _means(schema: bytes) -> bytes:
    return canonical.encode(strip_annotations(canonical.decode(schema)))


RELEVANCE: Final = "/relay/policy"
PRINCIPAL: Final = "/manage/principal"

_POLICIES: Final = {each.value: each for each in PrincipalPolicy}
_WHO: Final = ("platform", "instanceId", "tenant")


class DeclaredPolicies(NamedTuple):
    """The policies that an agent would have declared; None where it would have declared none."""

    relevance: RelevancePolicy | None = None
    principal: PrincipalRule | None = None


class Declaration(NamedTuple):
    """One declaration; without an instance it applies to all."""

    platform: str
    instance: str | None
    tenant: str | None
    says: DeclaredPolicies

    def concerns(self, key: PolicyKey) -> bool:
        """Whether it applies to an instance on a platform."""
        return (
            self.platform == key.platform
            and self.instance in (None, key.instance)
            and self.tenant in (None, key.tenant)
        )


@dataclass(frozen=True)
class ProposedPolicy:
    """Declarations by route, as canonical JSON; the last one for an agent applies."""

    text: bytes

    @cached_property
    def declarations(self) -> tuple[Declaration, ...]:
        """The parsed declarations."""
        return tuple(_read(canonical.decode(self.text)))

    def applied(self, facts: Facts, keys: Iterable[PolicyKey]) -> Facts:
        """The facts as they would have been with these declarations."""
        relevance, principals = dict(facts.relevance), dict(facts.principals)
        for key in keys:
            declared = self._by_key.get(key)
            if declared is None:
                declared = self._by_key[key] = self._of(key)
            if declared.relevance is not None:
                relevance[key] = declared.relevance
            if declared.principal is not None:
                principals[key] = declared.principal
        return replace(facts, relevance=relevance, principals=principals)

    def _of(self, key: PolicyKey) -> DeclaredPolicies:
        relevance, principal = None, None
        for each in self.declarations:
            if each.concerns(key):
                relevance = each.says.relevance or relevance
                principal = each.says.principal or principal
        return DeclaredPolicies(relevance, principal)

    @cached_property
    def _by_key(self) -> dict[PolicyKey, DeclaredPolicies]:
        return {}


def read_policy(raw: bytes | str) -> ProposedPolicy:
    """Parse a proposed policy; raise `PipelineError` with the place of the mistake."""
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


def _relevance(body: Mapping[str, Any]) -> DeclaredPolicies:
    return DeclaredPolicies(relevance=RelevancePolicy.from_dict(body))


def _principal(body: Mapping[str, Any]) -> DeclaredPolicies:
    named = body.get("policy")
    policy = _POLICIES.get(named) if isinstance(named, str) else None
    if policy is None:
        raise bad(f"expected one of {', '.join(_POLICIES)}", where="/policy")
    return DeclaredPolicies(principal=PrincipalRule(policy, frozenset(texts(body, "allow"))))


_ROUTES: Final[Mapping[str, Callable[[Mapping[str, Any]], DeclaredPolicies]]] = {
    RELEVANCE: _relevance,
    PRINCIPAL: _principal,
}

_MEND: Final = 'write {"/relay/policy": [{"platform": "chat", "requireAddress": true}]} or the like'


def _bad(what: str, where: str) -> PipelineError:
    return PipelineError(what, where=where or None, mend=_MEND)


REVOKED: Final = "community.member.revoked"
DEFAULT_SIGNATURES: Final = 3

_UNSIGNED: Final = write_signature(bytes(SIGNATURE_SIZE))
# After everything else at its lamport.
_LAST_ULID: Final = "7" + "Z" * 25

StateObject = Mapping[str, Any]
"""A community's state, see `community.rules.state.state_object`."""


class RevocationCut(NamedTuple):
    """The last event of the target that would stay valid, by number and hash."""

    seq: int
    hash: str | None


def needed_signatures(state: StateObject, target: str) -> int:
    """How many members must sign a revocation."""
    wanted = int((state["policy"] or {}).get("min_signatures_to_revoke", DEFAULT_SIGNATURES))
    levels = {each["node_id"]: Level.parse(each["level"]) for each in state["members"]}
    return signatures_needed(wanted, target, levels)


def able_to_sign(state: StateObject, target: str) -> list[str]:
    """The members who may sign, by trust and then by age of their membership."""
    trusted = [
        (-Level.parse(each["level"]), each["since"]["lamport"], each["node_id"])
        for each in state["members"]
        if each["node_id"] != target and Level.parse(each["level"]) >= Level.TRUSTED
    ]
    return [node_id for *_, node_id in sorted(trusted)]


def compose_revocation(state: StateObject, target: str, cut: RevocationCut, lamport: int) -> Event:
    """The revocation as a member's next event; raise `PipelineError` if no member may write it."""
    able = able_to_sign(state, target)
    chains = {each["author"]: each for each in state["authors"]}
    author = next((each for each in able if _is_whole(chains.get(each))), None)
    if author is None:
        raise PipelineError(
            "nobody else in the community may revoke, so a revocation could not be written",
            mend="the community needs another trusted member",
        )
    others = [each for each in able if each != author][: needed_signatures(state, target) - 1]
    chain = chains[author]
    return read_event(
        {
            "schema_version": 1,
            "event_id": _LAST_ULID,
            "lamport": lamport,
            "wall_clock": state["created_at"],
            "community_id": state["community_id"],
            "author": author,
            "author_seq": chain["author_seq"] + 1,
            "prev": chain["hash"],
            "event_type": REVOKED,
            "data": {
                "client_id": "whatif",
                "target_node_id": target,
                "reason": "other",
                "target_last_seq": cut.seq,
                "target_last_hash": cut.hash,
                "co_signers": [{"node_id": each, "signature": _UNSIGNED} for each in others],
            },
            "signature": _UNSIGNED,
        }
    )


def _is_whole(chain: Mapping[str, Any] | None) -> bool:
    """Whether the chain of an author can be continued."""
    return (
        chain is not None
        and chain["equivocation"] is None
        and chain["broken"] is None
        and chain["author_seq"] == chain["seen_seq"]
    )
