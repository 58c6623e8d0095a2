"""Permissions: which subjects a session may publish and subscribe to, and why (section 16).

A caller gets what its uses select and its capabilities allow; a service also gets what it owns and
what is bound to it. The rules are data, which `analysis` lists, too. A binding grants something
only if the contract declares its alias.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal

from accord.contracts.effective import Resolution, Use
from accord.contracts.errors import ContractError
from accord.contracts.manifest import digest
from accord.contracts.surfaces import Section, Surface, control_subject, surfaces
from accord.kernel.canonical import pointer
from accord.kernel.errors import Finding

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,255}")


@dataclass(frozen=True, slots=True)
class ConsumerBinding:
    """The durable consumer of an event consumer group, by stream and physical name."""

    stream: str
    consumer: str

    def __post_init__(self) -> None:
        _check_names(self.stream, self.consumer)


@dataclass(frozen=True, slots=True)
class QueueBinding:
    """A job queue."""

    namespace: str  # the service's namespace among jobs
    queue: str  # the physical name in the namespace
    consumer: str  # the queue's consumer on the work stream
    stream: str = "JOBS_WORK"
    key_bucket: str | None = None  # the KV bucket of a keyed queue

    def __post_init__(self) -> None:
        _check_names(self.namespace, self.queue, self.consumer, self.stream)
        if self.key_bucket is not None:
            _check_names(self.key_bucket)


@dataclass(frozen=True, slots=True)
class Bindings:
    """What is bound to the aliases of one contract in one deployment."""

    # KV buckets by alias; `store` has object stores.
    kv: Mapping[str, str] = field(default_factory=dict)
    store: Mapping[str, str] = field(default_factory=dict)
    # By the group in `eventConsumers`.
    consumers: Mapping[str, ConsumerBinding] = field(default_factory=dict)
    jobs: Mapping[str, QueueBinding] = field(default_factory=dict)
    operations: str | None = None  # the KV bucket of operation records

    def __post_init__(self) -> None:
        _check_names(*self.kv.values(), *self.store.values())
        if self.operations is not None:
            _check_names(self.operations)


def _check_names(*names: str) -> None:
    """Refuse dots and wildcards: such a name would match more than one resource."""
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise ContractError(
                f"{name[:80]!r} cannot be the name of a bound resource",
                mend="use letters, digits, - and _, at most 255 of them",
            )


Names = Mapping[str, Mapping[str, str]]
"""By alias, the physical names that fill in the templates of a rule."""


@dataclass(frozen=True, slots=True)
class BoundRule:
    """The permissions that a binding gives to the service."""

    id: str  # stable; named by reasons
    category: str  # the kind of permission, as an analysis names it
    purpose: str  # the middle of a sentence
    path: tuple[str, ...]  # the map of the manifest that declares the aliases
    # Gives the physical names of each alias, from bindings and declared aliases.
    names: Callable[[Bindings, Iterable[str]], Names]
    subjects: tuple[str, ...]  # subjects to publish on, with braces for physical names
    heard: tuple[str, ...] = ()  # subjects to subscribe to, likewise
    member: str | None = None  # the member of the entry that declares it, if not the entry itself
    # The events of uses (alias and name) that an entry must subscribe to.
    relies_on: Callable[[Mapping[str, Any]], Iterable[tuple[str, str]]] = lambda _: ()

    def declared(self, contract: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """The entries of a valid contract that the rule concerns, by alias."""
        entries: Mapping[str, Any] = contract
        for step in self.path:
            entries = entries.get(step, {})
        return {
            alias: entry
            for alias, entry in entries.items()
            if self.member is None or self.member in entry
        }

    def pointer(self, alias: str) -> str:
        """Where an entry is declared."""
        return pointer(*self.path, alias, *(() if self.member is None else (self.member,)))


def _consumed(group: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for alias, events in group.get("uses", {}).items():
        for event in events:
            yield alias, event


def _buckets(bindings: Bindings, _: Iterable[str]) -> Names:
    return {alias: {"bucket": name} for alias, name in bindings.kv.items()}


def _stores(bindings: Bindings, _: Iterable[str]) -> Names:
    return {alias: {"store": name} for alias, name in bindings.store.items()}


def _consumers(bindings: Bindings, _: Iterable[str]) -> Names:
    return {group: asdict(bound) for group, bound in bindings.consumers.items()}


def _queues(bindings: Bindings, _: Iterable[str]) -> Names:
    return {name: asdict(bound) for name, bound in bindings.jobs.items()}


def _operation_records(bindings: Bindings, declared: Iterable[str]) -> Names:
    """One bucket holds the records of all operations."""
    if bindings.operations is None:
        return {}
    return {name: {"bucket": bindings.operations} for name in declared}


def _key_buckets(bindings: Bindings, _: Iterable[str]) -> Names:
    return {
        name: {"bucket": bound.key_bucket}
        for name, bound in bindings.jobs.items()
        if bound.key_bucket is not None
    }


# The subjects are those of one bucket, store, consumer or queue, never of management: no session
# may create a consumer, because the server would deliver its messages to any subject that the
# session names, permitted or not. Keys are listed by the stream's own information, and values,
# history and chunks are read by gets. Where an instance must notice what another one did, it
# hears the subjects themselves.
_READING: Final = (
    "$JS.API.STREAM.INFO.{stream}",
    "$JS.API.STREAM.MSG.GET.{stream}",
    "$JS.API.DIRECT.GET.{stream}",
    "$JS.API.DIRECT.GET.{stream}.>",
)
_BUCKET: Final = (
    "$KV.{bucket}.>",
    *(subject.replace("{stream}", "KV_{bucket}") for subject in _READING),
)
_RECORDS: Final = (
    *_BUCKET,
    "$JS.API.STREAM.PURGE.KV_{bucket}",  # records of ended work
)
_STORE: Final = (
    "$O.{store}.>",
    *(subject.replace("{stream}", "OBJ_{store}") for subject in _READING),
    "$JS.API.STREAM.PURGE.OBJ_{store}",  # the chunks of what is replaced or deleted
)
_PULLING: Final = (
    "$JS.API.CONSUMER.INFO.{stream}.{consumer}",
    "$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}",
    "$JS.ACK.{stream}.{consumer}.>",
)
_QUEUE: Final = (
    *_PULLING,
    "trellis.jobs.{namespace}.{queue}.>",
    "trellis.work.{namespace}.{queue}",
    "$JS.API.DIRECT.GET.JOBS.trellis.jobs.{namespace}.{queue}.>",  # was it cancelled?
)

# fmt: off
BOUND: Final = (
    BoundRule("bound.kv", "resource:kv", "uses the bucket", ("resources", "kv"),
              _buckets, _BUCKET),
    BoundRule("bound.store", "resource:store", "uses the store", ("resources", "store"),
              _stores, _STORE),
    BoundRule("bound.consumer", "resource:consumer", "pulls events for the group",
              ("eventConsumers",), _consumers, _PULLING, relies_on=_consumed),
    BoundRule("bound.queue", "jobs:queue", "works on the queue", ("jobs",), _queues, _QUEUE,
              ("trellis.jobs.{namespace}.{queue}.>",)),
    BoundRule("bound.queue-keys", "jobs:keys", "counts active jobs by key for the queue",
              ("jobs",), _key_buckets, _RECORDS, member="keyConcurrency"),
    BoundRule("bound.operations", "operation:records", "keeps the records of the operation",
              ("operations",), _operation_records, _RECORDS, ("$KV.{bucket}.>",)),
)
# fmt: on
"""What each kind of binding gives to the service."""


Permission = Literal["publish", "subscribe"]

UPLOAD: Final = "transfer.v1.upload"
DOWNLOAD: Final = "transfer.v1.download"


@dataclass(frozen=True, slots=True)
class SurfaceRule:
    """One permission that a surface gives."""

    id: str  # stable; named by reasons
    category: str  # the kind of permission, as an analysis names it
    purpose: str  # the middle of a sentence
    section: Section
    permission: Permission
    # Gives the subject, if any, from the surface and the session's prefix.
    subject: Callable[[Surface, str], str | None]
    selector: str = ""  # the list of a use that selects the surface; empty for the owner
    gate: str = ""  # the action whose capabilities are required; empty for the owner
    # The member of the surface that declares it, if not the surface itself.
    member: str | None = None

    def pointer(self, surface: Surface) -> str:
        """Where a surface declares it."""
        path = (surface.section, surface.name)
        return pointer(*path) if self.member is None else pointer(*path, self.member)


def _itself(surface: Surface, _: str) -> str:
    return surface.subject


def _control(surface: Surface, _: str) -> str:
    return control_subject(surface.subject)


def _transferred(
    subject: str, direction: str, *, owned: bool
) -> Callable[[Surface, str], str | None]:
    """Callers do not know which session will answer, so they get a wildcard."""

    def scoped(surface: Surface, prefix: str) -> str | None:
        if surface.transfer != direction:
            return None
        return f"{subject}.{prefix if owned else '*'}.*"

    return scoped


_uploads: Final = _transferred(UPLOAD, "send", owned=False)
_downloads: Final = _transferred(DOWNLOAD, "receive", owned=False)
_own_uploads: Final = _transferred(UPLOAD, "send", owned=True)
_own_downloads: Final = _transferred(DOWNLOAD, "receive", owned=True)

# fmt: off
USED: Final = (
    SurfaceRule("use.rpc.call", "rpc:call", "calls the RPC",
                "rpc", "publish", _itself, "call", "call"),
    SurfaceRule("use.rpc.download", "transfer:download", "receives files of the RPC",
                "rpc", "subscribe", _downloads, "call", "call"),
    SurfaceRule("use.operation.call", "operation:call", "starts the operation",
                "operations", "publish", _itself, "call", "call"),
    SurfaceRule("use.operation.observe", "operation:control", "observes the operation",
                "operations", "publish", _control, "call", "observe"),
    SurfaceRule("use.operation.cancel", "operation:control", "cancels the operation",
                "operations", "publish", _control, "call", "cancel"),
    SurfaceRule("use.operation.signal", "operation:control", "sends signals to the operation",
                "operations", "publish", _control, "call", "control"),
    SurfaceRule("use.operation.upload", "transfer:upload", "sends files to the operation",
                "operations", "publish", _uploads, "call", "call"),
    SurfaceRule("use.event.publish", "event:publish", "publishes the event",
                "events", "publish", _itself, "publish", "publish"),
    SurfaceRule("use.event.subscribe", "event:subscribe", "subscribes to the event",
                "events", "subscribe", _itself, "subscribe", "subscribe"),
    SurfaceRule("use.feed.subscribe", "feed:subscribe", "asks for the feed",
                "feeds", "publish", _itself, "subscribe", "subscribe"),
)
"""What the use of a surface gives to a session that holds the capabilities."""

OWNED: Final = (
    SurfaceRule("own.rpc.handle", "rpc:handle", "answers the RPC",
                "rpc", "subscribe", _itself),
    SurfaceRule("own.rpc.download", "transfer:handle", "takes requests for files of the RPC",
                "rpc", "subscribe", _own_downloads, member="transfer"),
    SurfaceRule("own.rpc.send", "transfer:handle", "sends files of the RPC",
                "rpc", "publish", _own_downloads, member="transfer"),
    SurfaceRule("own.operation.handle", "operation:handle", "runs the operation",
                "operations", "subscribe", _itself),
    SurfaceRule("own.operation.control", "operation:control", "takes control frames of",
                "operations", "subscribe", _control),
    SurfaceRule("own.operation.upload", "transfer:handle", "takes files for the operation",
                "operations", "subscribe", _own_uploads, member="transfer"),
    SurfaceRule("own.event.publish", "event:publish", "publishes the event",
                "events", "publish", _itself),
    SurfaceRule("own.feed.handle", "feed:handle", "serves the feed",
                "feeds", "subscribe", _itself),
)
"""What owning a surface gives to the service."""
# fmt: on


_PREFIX: Final = 16
_SESSION_KEY: Final = re.compile(rf"[A-Za-z0-9_-]{{{_PREFIX},}}")


class SessionRole(StrEnum):
    """A session's role under the contract that it presents."""

    CALLER = "caller"
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class Grants:
    """The subjects that a session may use, with all reasons."""

    # Reasons by subject, sorted; `subscribe` likewise.
    publish: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)
    subscribe: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)
    # What is declared but not granted because capabilities are missing.
    withheld: tuple[Finding, ...] = ()
    blockers: tuple[Finding, ...] = ()  # why nothing is granted

    @property
    def ok(self) -> bool:
        """Whether the session may connect."""
        return not self.blockers


def grants(
    contract: Any,
    *,
    role: SessionRole,
    resolution: Resolution,
    capabilities: Collection[str],
    bindings: Bindings | None = None,
    session_key: str,
) -> Grants:
    """The permissions of a session; none if a required use is not resolved.

    `bindings` are those of the deployment, only for a service. Raises ContractError if the contract
    or the session key (base64url) is not valid, or the resolution is of another contract.
    """
    prefix = session_prefix(session_key)
    if digest(contract) != resolution.digest:
        raise ContractError(
            "the resolution is of another contract",
            mend="resolve the uses of the contract that the session presents",
        )
    if not resolution.ok:
        return Grants(blockers=resolution.blockers)
    ledger = _GrantCollector(frozenset(capabilities), prefix)
    ledger.grant(
        "subscribe",
        f"{inbox_prefix(session_key)}.>",
        Finding("session.inbox", "", "every session receives its answers in its own inbox"),
    )
    for use in resolution.uses:
        ledger.use(use)
    if role is SessionRole.SERVICE:
        ledger.own(contract)
        for rule in BOUND:
            ledger.bind(rule, contract, bindings or Bindings())
    return ledger.closed()


def session_prefix(session_key: str) -> str:
    """The part of a session key that is used in subjects; raises ContractError on a bad key."""
    if _SESSION_KEY.fullmatch(session_key) is None:
        raise ContractError(
            "the session key is not a public key in base64url",
            mend="give the session's Ed25519 public key, 43 characters of base64url",
        )
    return session_key[:_PREFIX]


def inbox_prefix(session_key: str) -> str:
    """The prefix of a session's reply subjects; raises ContractError on a bad key."""
    return f"_INBOX.{session_prefix(session_key)}"


class _GrantCollector:
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
        """Grant a use, as far as the session has the capabilities."""
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
        """Grant what the service's own surfaces need."""
        for surface in surfaces(contract):
            for rule in _OWNED[surface.section]:
                subject = rule.subject(surface, self._prefix)
                if subject is not None:
                    sentence = f"the service {rule.purpose} {surface.name!r}"
                    reason = Finding(rule.id, rule.pointer(surface), sentence)
                    self.grant(rule.permission, subject, reason)

    def bind(self, rule: BoundRule, contract: Mapping[str, Any], bindings: Bindings) -> None:
        """Grant what is bound to declared aliases."""
        declared = rule.declared(contract)
        for alias, names in rule.names(bindings, declared).items():
            if alias not in declared:
                continue
            place = rule.pointer(alias)
            sentence = f"the service {rule.purpose} {alias!r}"
            # A durable consumer must not bypass the capabilities of its events.
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
