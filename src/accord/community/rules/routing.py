"""The choice of a node for a call, what a failed call means, and the retry policy of a client.

Pure: time is an argument. What other nodes say of themselves is a claim; it counts until calls have
shown how the node does, and never for more than a measurement.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from accord.community.errors import Code, CommunityError
from accord.community.rules.capabilities import Version
from accord.community.rules.formats import Level
from accord.kernel.errors import Finding

FRESH_SECONDS: Final = 60.0
"""How long an observation, and what a provider said of itself, counts."""

QUARANTINE_SECONDS: Final = 60.0
FAILURE_PENALTY: Final = 1.0
"""Seconds that a provider's cost grows by when all its calls failed."""

COSTLY_FAILURE: Final = 5.0
"""The factor on `FAILURE_PENALTY` for a call that cannot be repeated elsewhere."""

LOCAL_BONUS: Final = 0.010
"""Seconds by which this node itself may be slower than another and still be preferred."""

UNKNOWN_LATENCY: Final = 0.050
"""What a provider that was never called is taken to need."""

TRUST_STEP: Final = 0.010
"""Seconds that each trust level below anchor costs."""

MISMATCH_PENALTY: Final = 1.0
"""Seconds for a node that may serve the call, and says nothing of the language or corpus."""

_JUDGED: Final = 4
_REMEMBERED: Final = 64
_MOST_LOAD: Final = 10.0
_GPU_FACTOR: Final = 0.5
_MOST_MODELS: Final = 256
_LONGEST_NAME: Final = 128
_DAY: Final = 86_400.0

_ROUTED: Final = frozenset({"llm", "embed"})
_ROUTED_NAMES: Final = frozenset({"rag.query"})
# Experimental capabilities that concern the node that is asked.
_OWN: Final = ("experimental.file.", "experimental.community.", "experimental.chat.")
_OWN_NAMES: Final = frozenset(
    {"experimental.rag.search", "experimental.rag.corpora", "experimental.rag.answer"}
)
_READS: Final = frozenset({"llm.chat", "llm.complete", "embed.text", "rag.query"})

ROUTE_RULES: Final[Mapping[str, str]] = {
    "route.local": "It is this node.",
    "route.capability": "It does not offer the capability.",
    "route.version": "It offers only versions that do not serve this call.",
    "route.model": "It does not have the model.",
    "route.corpus": "By the log it has documents of the corpus.",
    "route.corpus.unknown": "The log names no document of the corpus that it has ingested.",
    "route.language": "It does not say that it is made for the language.",
    "route.level": "It is trusted less than the setting asks for.",
    "route.stale": "Its manifest is too old, or was never seen.",
    "route.lost": "It could not be reached after its last manifest.",
    "route.full": "It serves as many calls as it can.",
    "route.quarantine": "More than half of its calls failed in the last minute.",
    "route.barred": "It gave bad answers, and is left alone for a time.",
    "route.tried": "This call failed there.",
    "route.probe": "Its time apart is over, and this call shows whether it works again.",
    "route.latency": "So long its calls took.",
    "route.unmeasured": "No call has shown how fast it is.",
    "route.load": "So busy it says it is.",
    "route.hardware": "It says that it has a GPU; this counts until it was measured.",
    "route.failures": "Calls to it failed in the last minute.",
    "route.trust": "Its trust level.",
}
"""The reasons for and against a node, by rule."""


def is_routed(capability: str) -> bool:
    """Whether a call may be served by another node than the caller's own.

    Chat, market, files and membership are about the caller's own node.
    """
    if capability in _OWN_NAMES or capability.startswith(_OWN):
        return False
    prefix = capability.partition(".")[0]
    return prefix in _ROUTED or prefix == "experimental" or capability in _ROUTED_NAMES


def changes_nothing(capability: str) -> bool:
    """Whether a call may be repeated on another node although it is not idempotent."""
    return capability in _READS


@dataclass(frozen=True, slots=True)
class CallNeeds:
    """What a call needs of the node that serves it.

    Attributes:
        repeatable: Whether it may be repeated after a failure.
    """

    capability: str
    least: Version
    model: str | None = None
    corpus: str | None = None
    language: str | None = None
    repeatable: bool = False

    @classmethod
    def of(
        cls,
        capability: str,
        version: str,
        params: Mapping[str, Any],
        given: Mapping[str, Any],
        *,
        idempotent: bool,
    ) -> "CallNeeds":
        """The needs of a call, from its request."""
        wanted = given.get("filter")
        language = wanted.get("language") if isinstance(wanted, Mapping) else given.get("language")
        return cls(
            capability,
            Version.parse(version),
            _text(params.get("model")),
            _text(params.get("corpus")),
            _text(language),
            idempotent or changes_nothing(capability),
        )


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of one call, for its caller."""

    at: float
    seconds: float
    succeeded: bool


@dataclass(slots=True)
class CallHistory:
    """The last calls of a capability to one node.

    Attributes:
        quarantined_until: Until when it is not called.
        full_until: Until when it has asked to be left alone.
    """

    quarantined_until: float = 0.0
    full_until: float = 0.0
    _outcomes: deque[CallOutcome] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _probing: bool = False

    def observe(self, outcome: CallOutcome) -> None:
        """Record an outcome; too many failures quarantine the node."""
        if self._probing:
            # The probe replaces the outcomes from before the quarantine.
            self._probing = False
            self._outcomes.clear()
            self.quarantined_until = 0.0
            if not outcome.succeeded:
                self.quarantined_until = outcome.at + QUARANTINE_SECONDS
                return
        self._outcomes.append(outcome)
        recent = self.recent(outcome.at)
        if len(recent) >= _JUDGED and success_rate(recent) < 0.5:
            self.quarantined_until = outcome.at + QUARANTINE_SECONDS

    def recent(self, now: float) -> list[CallOutcome]:
        """The calls that still count."""
        return [outcome for outcome in self._outcomes if now - outcome.at <= FRESH_SECONDS]

    def latency(self, now: float) -> float | None:
        """The median of the successful calls in seconds; None if there were none."""
        answered = sorted(each.seconds for each in self.recent(now) if each.succeeded)
        return answered[(len(answered) - 1) // 2] if answered else None

    def begin_probe(self) -> None:
        """Mark the next call as the probe that decides whether the quarantine ends."""
        self._probing = True

    def end_probe(self) -> None:
        """Abandon the probe; the next call becomes one."""
        self._probing = False

    @property
    def probing(self) -> bool:
        """Whether a probe is running."""
        return self._probing


def success_rate(outcomes: Sequence[CallOutcome]) -> float:
    """The share of successful calls; 1 if there were none."""
    return sum(outcome.succeeded for outcome in outcomes) / len(outcomes) if outcomes else 1.0


class Misconduct(Enum):
    """What a node did that an honest and sound one does not do."""

    LIE = "lie"
    """It does not have what its manifest names."""
    GARBAGE = "garbage"
    """Its answer is not its own, or breaks the capability's schema."""
    ENDLESS = "endless"
    """Its answer was longer than any may be."""
    SLOW = "slow"
    """It took longer than a call may take."""

    @property
    def concerns_all(self) -> bool:
        """Whether every capability of the node is left alone, not only the one that was called."""
        return self in (Misconduct.GARBAGE, Misconduct.ENDLESS)


@dataclass(frozen=True, slots=True)
class Bar:
    """A node that is left alone for a time; `count` is how often that happened.

    Attributes:
        capability: The only one that is concerned; empty for all.
    """

    node_id: str
    capability: str
    kind: Misconduct
    count: int
    until: float

    def is_over(self, now: float) -> bool:
        """Whether the node may be called again."""
        # A bar beyond the longest one means that the clock was set back.
        return not now < self.until <= now + _DAY

    def is_forgotten(self, now: float) -> bool:
        """Whether it no longer counts when the node misbehaves again."""
        return self.is_over(now) and not self.until <= now <= self.until + _DAY


def bar(before: Bar | None, node_id: str, capability: str, kind: Misconduct, now: float) -> Bar:
    """The bar after a misconduct: four times as long each time, up to a day."""
    count = 1 if before is None or before.is_forgotten(now) else before.count + 1
    first = QUARANTINE_SECONDS if kind is Misconduct.SLOW else 5 * QUARANTINE_SECONDS
    seconds = min(_DAY, first * 4.0 ** min(count - 1, 8))
    return Bar(node_id, "" if kind.concerns_all else capability, kind, count, now + seconds)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node as a candidate for one call.

    Attributes:
        listings: The capabilities of its manifest.
        in_flight: How many calls it says it serves; for this node the true number.
        age: Seconds since its manifest was verified; None if there is none.
        is_lost: Whether it could not be reached since then.
        holds_corpus: Whether the log names it as ingester of a document; None if nobody asks.
    """

    node_id: str
    name: str
    level: Level
    local: bool = False
    listings: Sequence[Mapping[str, Any]] = ()
    hardware: Mapping[str, Any] = field(default_factory=dict)
    load: Mapping[str, Any] = field(default_factory=dict)
    age: float | None = 0.0
    is_lost: bool = False
    holds_corpus: bool | None = None
    history: CallHistory = field(default_factory=CallHistory)
    barred: Bar | None = None
    is_tried: bool = False


@dataclass(frozen=True, slots=True)
class RoutePolicy:
    """How this node's owner wants calls to be routed.

    Attributes:
        local_first: Whether this node serves what it can; else it only has a small advantage.
        least_level: The lowest trust level of a node that is given calls.
    """

    local_first: bool = True
    least_level: Level = Level.MEMBER


@dataclass(frozen=True, slots=True)
class Route:
    """A node in the ranking, with the reasons.

    Attributes:
        cost: The expected cost in seconds; lower is better.
        is_busy: Whether it may be called later, and only that keeps it from being called now.
        listing: The entry of its manifest that serves the call; None if there is none.
    """

    node_id: str
    name: str
    local: bool
    usable: bool
    cost: float
    reasons: tuple[Finding, ...]
    listing: Mapping[str, Any] | None = None
    is_busy: bool = False


def rank(
    needs: CallNeeds, nodes: Iterable[NodeFacts], policy: RoutePolicy, now: float
) -> list[Route]:
    """Every node with its reasons: first those that may be called, the best first."""
    routes = [_route(needs, node, policy, now) for node in nodes]
    return sorted(
        routes,
        key=lambda route: (
            not route.usable,
            not (policy.local_first and route.local),
            route.cost,
            route.node_id,
        ),
    )


def _route(needs: CallNeeds, node: NodeFacts, policy: RoutePolicy, now: float) -> Route:
    listing, against = _listing(needs, node)
    against += _obstacles(needs, node, listing, policy, now)
    cost, reasons = _cost(needs, node, listing, now)
    if node.local:
        reasons.insert(0, _reason("route.local", "it is this node"))
    return Route(
        node.node_id,
        node.name,
        node.local,
        not against,
        cost,
        (*against, *reasons),
        listing,
        listing is not None and {each.rule for each in against} == {"route.full"},
    )


def _listing(needs: CallNeeds, node: NodeFacts) -> tuple[Mapping[str, Any] | None, list[Finding]]:
    """The newest fitting entry of a node's manifest, or why there is none."""
    named = [each for each in node.listings if each.get("name") == needs.capability]
    if not named:
        if node.age is None:
            return None, []
        return None, [_reason("route.capability", f"it does not offer {needs.capability}")]
    fitting = [each for each in named if _version(each).satisfies(needs.least)]
    if not fitting:
        offered = ", ".join(sorted(str(each.get("version")) for each in named))[:80]
        return None, [
            _reason("route.version", f"it offers version {offered}, not {needs.least} or a later")
        ]
    newest = max(fitting, key=_version)
    if needs.model is not None and needs.model not in listed_models(newest):
        return None, [_reason("route.model", f"it does not have the model {needs.model[:128]}")]
    return newest, []


def _obstacles(
    needs: CallNeeds,
    node: NodeFacts,
    listing: Mapping[str, Any] | None,
    policy: RoutePolicy,
    now: float,
) -> list[Finding]:
    found = []
    if node.is_tried:
        found.append(_reason("route.tried", "the call failed there"))
    if node.history.quarantined_until > now:
        left = node.history.quarantined_until - now
        found.append(_reason("route.quarantine", f"its calls fail; left alone for {left:.0f} s"))
    elif node.history.probing:
        found.append(_reason("route.quarantine", "another call finds out whether it works again"))
    if node.history.full_until > now or (_share(node, listing) >= 1 and node.local):
        found.append(_reason("route.full", "it has no room for one more call now"))
    if node.local:
        return found
    if node.level < policy.least_level:
        found.append(
            _reason(
                "route.level",
                f"it is {node.level.text}, and calls go to {policy.least_level.text} or above",
            )
        )
    if node.barred is not None and not node.barred.is_over(now):
        left = node.barred.until - now
        found.append(
            _reason("route.barred", f"{node.barred.kind.value}; left alone for {left:.0f} s")
        )
    if node.age is None or node.age > FRESH_SECONDS:
        seen = "none was seen" if node.age is None else f"it is {node.age:.0f} s old"
        found.append(_reason("route.stale", f"it has no fresh manifest: {seen}"))
    elif node.is_lost:
        found.append(_reason("route.lost", "it could not be reached"))
    return found


def _cost(
    needs: CallNeeds, node: NodeFacts, listing: Mapping[str, Any] | None, now: float
) -> tuple[float, list[Finding]]:
    """The cost of a call in seconds, with its parts. Waiting for a probe costs least."""
    if node.history.quarantined_until and node.history.quarantined_until <= now:
        return -1.0, [_reason("route.probe", "it may work again, and this call shows it")]
    reasons = []
    recent = node.history.recent(now)
    latency = node.history.latency(now)
    if latency is not None:
        reasons.append(_reason("route.latency", f"its calls took {latency * 1000:.0f} ms"))
    else:
        latency = UNKNOWN_LATENCY
        reasons.append(_reason("route.unmeasured", "no call was measured in the last minute"))
        if needs.capability.startswith("llm.") and (gpu := _text(node.hardware.get("gpu"))):
            latency *= _GPU_FACTOR
            reasons.append(_reason("route.hardware", f"it says that it has a GPU: {gpu[:60]}"))
    share = _share(node, listing)
    load = max(number(node.load.get("cpu"), _MOST_LOAD), min(share, _MOST_LOAD))
    if load > 0:
        reasons.append(_reason("route.load", f"it is busy to {load:.0%}"))
    cost = latency * (1.0 + load)
    rate = success_rate(recent)
    if rate < 1:
        price = FAILURE_PENALTY * (1.0 if needs.repeatable else COSTLY_FAILURE)
        cost += price * (1.0 - rate)
        reasons.append(_reason("route.failures", f"{1 - rate:.0%} of its calls failed"))
    if node.local:
        return cost - LOCAL_BONUS, reasons
    steps = max(0, Level.ANCHOR - node.level)
    cost += TRUST_STEP * steps
    reasons.append(_reason("route.trust", f"it is {node.level.text}"))
    if node.holds_corpus is not None:
        if node.holds_corpus:
            reasons.append(_reason("route.corpus", f"it has documents of {needs.corpus}"))
        else:
            cost += MISMATCH_PENALTY
            reasons.append(_reason("route.corpus.unknown", f"{needs.corpus} is not known there"))
    if needs.language is not None and listing is not None:
        spoken = listing.get("params", {}).get("languages")
        if isinstance(spoken, list) and needs.language not in spoken:
            cost += MISMATCH_PENALTY
            reasons.append(_reason("route.language", f"it does not name {needs.language}"))
    return cost, reasons


def _share(node: NodeFacts, listing: Mapping[str, Any] | None) -> float:
    """How much of a node's room for a capability is used, as it says."""
    room = number((listing or {}).get("max_concurrent"), 1e6) or 16.0
    queued = number(node.load.get("queue"), 1e6)
    return max(number(node.load.get("in_flight_total"), 1e6), queued) / room


def number(value: object, most: float) -> float:
    """A number that another node wrote, from 0 to `most`; 0 for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return 0.0
    return float(min(value, most))


def listed_models(listing: Mapping[str, Any]) -> list[str]:
    """The models of a capability in a manifest: `params.models`, else `params.model`."""
    params = listing.get("params")
    if not isinstance(params, Mapping):
        return []
    named = params.get("models")
    found = named if isinstance(named, list) else [params.get("model")]
    return [text for each in found[:_MOST_MODELS] if (text := _text(each)) is not None]


def built_in_models(listing: Mapping[str, Any]) -> list[str]:
    """Those models of a capability that come with Accord."""
    params = listing.get("params")
    named = params.get("built_in") if isinstance(params, Mapping) else None
    return [each for each in listed_models(listing) if isinstance(named, list) and each in named]


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """A model in the community; `nodes` are those that have it, the best first."""

    name: str
    nodes: tuple[str, ...]
    built_in: bool


def offered_models(routes: Iterable[Route]) -> list[OfferedModel]:
    """The models of a capability on nodes that serve it, now or later, the best first.

    The small model that comes with Accord is on every node, and comes last.
    """
    found: dict[str, list[str]] = {}
    small = set()
    for route in routes:
        if not (route.usable or route.is_busy) or route.listing is None:
            continue
        for name in listed_models(route.listing):
            found.setdefault(name, []).append(route.node_id)
        small.update(built_in_models(route.listing))
    models = [OfferedModel(name, tuple(nodes), name in small) for name, nodes in found.items()]
    return sorted(models, key=lambda model: model.built_in)


@dataclass(frozen=True, slots=True)
class Failure:
    """What follows from a failed call.

    Attributes:
        elsewhere: Whether the next node is tried.
        counts: Whether it counts against the node.
        is_lost: Whether the node must show itself before it is called again.
    """

    elsewhere: bool
    counts: bool
    misconduct: Misconduct | None = None
    is_lost: bool = False


REFUSED_FOR_NOW: Final = frozenset({Code.RATE_LIMITED, Code.CAPACITY_EXCEEDED})
UNSENT: Final = "unsent"
"""Set in the details of an error when the request certainly never reached the node."""

# The serving node's own rules; another one may decide otherwise.
_ITS_RULES: Final = frozenset(
    {Code.UNAUTHORIZED, Code.REVOKED, Code.SCHEMA_MISMATCH, Code.EXPIRED, Code.INVALID_SIGNATURE}
)
_ABSENT: Final = frozenset({Code.NOT_FOUND, Code.NOT_IMPLEMENTED})
_BROKEN: Final = frozenset({Code.PARTITION, Code.TIMEOUT, Code.INTERNAL_ERROR})


def judge_failure(
    needs: CallNeeds, error: CommunityError, *, is_refusal: bool, has_begun: bool = False
) -> Failure:
    """What follows from an error.

    Args:
        is_refusal: Whether the node itself has said so; else the caller found it.
        has_begun: Whether a part of the answer has been passed on already.
    """
    code = error.code
    repeat = not has_begun and (needs.repeatable or bool(error.details.get(UNSENT)))
    if not is_refusal:
        if code is Code.BAD_REQUEST and error.details.get(UNSENT):
            return Failure(False, False)
        if code is Code.TIMEOUT:
            return Failure(repeat, True, Misconduct.SLOW)
        if code is Code.PARTITION:
            return Failure(repeat, True, is_lost=True)
        return Failure(repeat, True, Misconduct.GARBAGE)
    if code in REFUSED_FOR_NOW or code in _ITS_RULES:
        return Failure(not has_begun, False)
    if code in _ABSENT and needs.capability.partition(".")[0] in _ROUTED:
        return Failure(not has_begun, True, Misconduct.LIE)
    if code is Code.NOT_FOUND and needs.corpus is not None:
        return Failure(not has_begun, False)
    if code in _BROKEN:
        return Failure(repeat, True)
    return Failure(False, False)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The retries of a client.

    Attributes:
        attempts: The most attempts.
        first: The first pause in seconds; each further one is twice as long.
        longest: The longest pause; if a node asks for more, the call fails at once.
    """

    attempts: int = 4
    first: float = 0.2
    longest: float = 10.0

    def pause(
        self, error: CommunityError, made: int, chance: float, *, idempotent: bool
    ) -> float | None:
        """Seconds to wait before the next attempt; None if there is none.

        `made` counts the attempts so far; `chance` is a number from 0 to 1.
        """
        harmless = idempotent or error.code in REFUSED_FOR_NOW or error.details.get(UNSENT)
        if made >= self.attempts or not error.code.retryable or not harmless:
            return None
        backoff = min(self.longest, self.first * 2.0 ** (made - 1)) * (0.5 + chance / 2)
        least = asked_pause(error)
        return None if least > self.longest else least + backoff


def asked_pause(error: CommunityError) -> float:
    """The seconds for which a node asks to be left alone; 0 if it does not."""
    asked = error.details.get("retry_after_ms", 0)
    return asked / 1000 if type(asked) in (int, float) and asked > 0 else 0.0


def alternatives(error: CommunityError, known: Collection[str]) -> list[str]:
    """The known nodes that a refusal names as `alt_nodes`."""
    named = error.details.get("alt_nodes")
    return [each for each in named if each in known] if isinstance(named, list) else []


def _reason(rule: str, message: str) -> Finding:
    return Finding(rule, "", message)


def _version(listing: Mapping[str, Any]) -> Version:
    try:
        return Version.parse(str(listing.get("version")))
    except CommunityError:
        return Version(0, 0)


def _text(value: object) -> str | None:
    return value[:_LONGEST_NAME] if isinstance(value, str) and value else None
