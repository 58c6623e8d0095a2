"""`grants`: what one session may touch.

A caller gets what its uses lead to and its capabilities open; a service gets that, what it owns,
and exactly what is bound to it. It decides from its arguments alone.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from accord.contracts.errors import ContractError
from accord.contracts.manifest import digest
from accord.contracts.permissions.bindings import BOUND, Bindings, BoundRule
from accord.contracts.permissions.rules import OWNED, USED, Permission, SurfaceRule
from accord.contracts.surface import surfaces
from accord.contracts.uses import Resolution, Use
from accord.kernel.finding import Finding

_PREFIX: Final = 16
_SESSION_KEY: Final = re.compile(rf"[A-Za-z0-9_-]{{{_PREFIX},}}")


class Role(StrEnum):
    """What a session is in respect of the contract that it presents."""

    CALLER = "caller"
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class Grants:
    """The subjects that a session may touch, each with every reason why.

    Attributes:
        publish: Reasons by subject, in the order of subjects.
        subscribe: Reasons by subject, in the order of subjects.
        withheld: What is declared but not granted, because capabilities are missing.
        blockers: Why nothing at all is granted.
    """

    publish: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)
    subscribe: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)
    withheld: tuple[Finding, ...] = ()
    blockers: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the session may connect at all."""
        return not self.blockers


def grants(
    contract: Any,
    *,
    role: Role,
    resolution: Resolution,
    capabilities: Collection[str],
    bindings: Bindings | None = None,
    session_key: str,
) -> Grants:
    """Derive what a session may touch; nothing, if a required use leads nowhere.

    Args:
        contract: The manifest that the session presents.
        role: Whether it calls, or serves the contract.
        resolution: What the uses of this contract lead to.
        capabilities: The keys that the session holds.
        bindings: What is bound to the deployment; they matter to a service only.
        session_key: The session's public key in base64url.

    Raises:
        ContractError: The contract is not valid, the resolution is of another contract, or the
            session key is none.
    """
    prefix = session_prefix(session_key)
    if digest(contract) != resolution.digest:
        raise ContractError(
            "the resolution is of another contract",
            mend="resolve the uses of the contract that the session presents",
        )
    if not resolution.ok:
        return Grants(blockers=resolution.blockers)
    ledger = _Ledger(frozenset(capabilities), prefix)
    ledger.grant(
        "subscribe",
        f"{inbox_prefix(session_key)}.>",
        Finding("session.inbox", "", "every session receives its answers in its own inbox"),
    )
    for use in resolution.uses:
        ledger.use(use)
    if role is Role.SERVICE:
        ledger.own(contract)
        for rule in BOUND:
            ledger.bind(rule, contract, bindings or Bindings())
    return ledger.closed()


def session_prefix(session_key: str) -> str:
    """What of a session key stands in subjects.

    Raises:
        ContractError: The key is not base64url, or too short.
    """
    if _SESSION_KEY.fullmatch(session_key) is None:
        raise ContractError(
            "the session key is not a public key in base64url",
            mend="give the session's Ed25519 public key, 43 characters of base64url",
        )
    return session_key[:_PREFIX]


def inbox_prefix(session_key: str) -> str:
    """What every reply subject of a session begins with.

    Raises:
        ContractError: The key is not base64url, or too short.
    """
    return f"_INBOX.{session_prefix(session_key)}"


class _Ledger:
    """Collects grants for one session."""

    def __init__(self, capabilities: frozenset[str], prefix: str) -> None:
        self._held = capabilities
        self._prefix = prefix
        self._granted: dict[Permission, defaultdict[str, set[Finding]]] = {
            "publish": defaultdict(set),
            "subscribe": defaultdict(set),
        }
        self._withheld: set[Finding] = set()
        self._barred: set[tuple[str, str]] = set()

    def grant(self, permission: Permission, subject: str, reason: Finding) -> None:
        self._granted[permission][subject].add(reason)

    def use(self, use: Use) -> None:
        """Grant what a use gives, as far as the session holds the capabilities."""
        surface = use.surface
        for rule in _USED[surface.section, use.action]:
            subject = rule.subject(surface, self._prefix)
            gate = surface.gates.get(rule.gate)
            if subject is None or gate is None:
                continue
            sentence = f"the use {use.alias!r} {rule.purpose} {surface.name!r} of {use.contract}"
            if gate <= self._held:
                self.grant(rule.permission, subject, Finding(rule.id, use.pointer, sentence))
                continue
            missing = ", ".join(sorted(gate - self._held))
            self._withheld.add(Finding(rule.id, use.pointer, f"{sentence}, which needs {missing}"))
            if surface.section == "events" and use.action == "subscribe":
                self._barred.add((use.alias, surface.name))

    def own(self, contract: Mapping[str, Any]) -> None:
        """Grant what owning its surfaces gives to the service."""
        for surface in surfaces(contract):
            for rule in _OWNED[surface.section]:
                subject = rule.subject(surface, self._prefix)
                if subject is not None:
                    sentence = f"the service {rule.purpose} {surface.name!r}"
                    reason = Finding(rule.id, rule.pointer(surface), sentence)
                    self.grant(rule.permission, subject, reason)

    def bind(self, rule: BoundRule, contract: Mapping[str, Any], bindings: Bindings) -> None:
        """Grant what is bound to the aliases that the contract declares."""
        declared = rule.declared(contract)
        for alias, names in rule.names(bindings, declared).items():
            if alias not in declared:
                continue
            place = rule.pointer(alias)
            sentence = f"the service {rule.purpose} {alias!r}"
            # A durable consumer is no way around the capabilities of the events that it takes.
            barred = self._barred.intersection(rule.relies_on(declared[alias]))
            if barred:
                events = ", ".join(sorted({name for _, name in barred}))
                self._withheld.add(
                    Finding(rule.id, place, f"{sentence}, but may not subscribe to {events}")
                )
                continue
            reason = Finding(rule.id, place, sentence)
            for subject in rule.subjects:
                self.grant("publish", subject.format_map(names), reason)
            for subject in rule.heard:
                self.grant("subscribe", subject.format_map(names), reason)

    def closed(self) -> Grants:
        publish, subscribe = (
            {subject: tuple(sorted(granted[subject], key=_order)) for subject in sorted(granted)}
            for granted in (self._granted["publish"], self._granted["subscribe"])
        )
        return Grants(publish, subscribe, tuple(sorted(self._withheld, key=_order)))


def _order(finding: Finding) -> tuple[str, str, str]:
    return finding.pointer, finding.rule, finding.message


_USED: Final[defaultdict[tuple[str, str], list[SurfaceRule]]] = defaultdict(list)
_OWNED: Final[defaultdict[str, list[SurfaceRule]]] = defaultdict(list)
for _rule in USED:
    _USED[_rule.section, _rule.selector].append(_rule)
for _rule in OWNED:
    _OWNED[_rule.section].append(_rule)
