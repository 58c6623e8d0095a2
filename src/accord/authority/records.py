"""The records of the authority: what is desired, what is there, who offers what, who may what.

Pure values; `tables` keeps them. Times are seconds since the epoch, as numbers that came in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from accord.contracts.permissions import Bindings


class Kind(StrEnum):
    """What a deployment is made of."""

    SERVICE = "service"
    DEVICE = "device"


class Compatibility(StrEnum):
    """What becomes of a replacement that is not compatible: section 6 of the specification."""

    STRICT = "strict"
    MUTABLE_DEV = "mutable-dev"


class Classification(StrEnum):
    """How far a proposal goes beyond what was accepted."""

    NONE = "none"
    UPDATE = "update"
    MIGRATION = "migration"


class PlanState(StrEnum):
    """Where a plan stands."""

    PENDING = "pending"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    EXPIRED = "expired"


class MaterialState(StrEnum):
    """Whether what is there is what is desired."""

    CURRENT = "current"
    PENDING = "pending"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Desired:
    """What was accepted for a deployment.

    Attributes:
        contracts: The latest accepted digest of each contract id.
        surfaces: The surfaces of other contracts that it may use, as `id kind name action`.
        capabilities: The capability keys that it holds.
        resources: The accepted descriptor of every resource, by `(kind, contract id, alias)`
            where the kind is kv, store, consumer or job.
        shapes: The digest whose surfaces count for a dependency while nothing of it is active, by
            contract id.
    """

    contracts: Mapping[str, str] = field(default_factory=dict)
    surfaces: frozenset[str] = frozenset()
    capabilities: frozenset[str] = frozenset()
    resources: Mapping[tuple[str, str, str], Mapping[str, Any]] = field(default_factory=dict)
    shapes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Deployment:
    """What runs under one name, as one or as many instances.

    Attributes:
        version: Counts every change of what is desired; two that change it at once conflict.
    """

    id: str
    kind: Kind
    compatibility: Compatibility = Compatibility.STRICT
    disabled: bool = False
    desired: Desired = field(default_factory=Desired)
    version: int = 1


@dataclass(frozen=True, slots=True)
class Instance:
    """One process or machine of a deployment, known by its session key."""

    key: str
    deployment: str
    name: str
    disabled: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """A proposal to change what is desired.

    Attributes:
        requester: The connection or person that it came from.
        digest: The contract that was presented.
        delta: What would be added, changed and removed, with the findings that classify it.
        based_on: The version of the deployment that it was made against.
    """

    id: str
    deployment: str
    classification: Classification
    state: PlanState
    requester: str
    contract_id: str
    digest: str
    delta: Mapping[str, Any]
    based_on: int
    created_at: float
    decided_at: float | None = None
    decided_by: str | None = None


@dataclass(frozen=True, slots=True)
class Materialized:
    """What reconciliation has made of a deployment's desired state.

    Attributes:
        version: The version of the deployment that it was made from.
        bindings: What is bound, by contract id.
        settings: What a runtime must know of each bound resource, by contract id, kind and alias:
            limits, filters, retries.
        why: The reason, where it failed or waits.
    """

    deployment: str
    version: int
    status: MaterialState
    bindings: Mapping[str, Bindings] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """An instance says that it implements one contract at one digest.

    Attributes:
        live: Whether its connection is there; without it the offer is stale.
        accepted_at: When it was accepted.
        stale_at: Since when it has no connection.
        expires_at: When it ends if nothing is heard.
    """

    deployment: str
    instance: str
    contract_id: str
    digest: str
    live: bool
    accepted_at: float
    stale_at: float | None
    expires_at: float


class Holder(StrEnum):
    """Whose session it is."""

    SERVICE = "service"
    DEVICE = "device"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class Session:
    """A session key that may connect.

    Attributes:
        key: The public key in base64url.
        holder: Whose it is.
        subject: The deployment, or the person.
        origin: Where a browser's session comes from.
        capabilities: The keys that it holds.
        expires_at: When it ends, if it does.
        surfaces: What of its contract's uses was agreed to, as `id kind name action`; None if
            whatever the contract uses was.
    """

    key: str
    holder: Holder
    subject: str
    contract_id: str | None = None
    digest: str | None = None
    origin: str | None = None
    capabilities: frozenset[str] = frozenset()
    created_at: float = 0.0
    expires_at: float | None = None
    revoked_at: float | None = None
    surfaces: frozenset[str] | None = None
