"""Records of the authority: deployments, plans, offers, sessions, people, logins, consents.

Times are seconds since the epoch. A client is identified by its anchor: the origin of a browser
app, or the session key of anything else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from accord.contracts.permissions import Bindings


@dataclass(frozen=True, slots=True)
class Person:
    """A person who can log in; `capabilities` are what it may pass on to clients."""

    id: str
    name: str
    capabilities: frozenset[str]
    disabled: bool
    has_password: bool
    created_at: float


@dataclass(frozen=True, slots=True)
class Access:
    """What a client asks for or is allowed: surfaces (`id kind name action`) and capabilities."""

    surfaces: frozenset[str] = frozenset()
    capabilities: frozenset[str] = frozenset()

    def __sub__(self, other: "Access") -> "Access":
        return Access(self.surfaces - other.surfaces, self.capabilities - other.capabilities)

    def __or__(self, other: "Access") -> "Access":
        return Access(self.surfaces | other.surfaces, self.capabilities | other.capabilities)

    def __bool__(self) -> bool:
        return bool(self.surfaces or self.capabilities)


class LoginFlowState(StrEnum):
    """The state of a login."""

    BEGUN = "begun"
    APPROVED = "approved"
    DENIED = "denied"
    BOUND = "bound"


@dataclass(frozen=True, slots=True)
class LoginFlow:
    """A session that asks to act for a person; `id` is in the address of its page only."""

    id: str
    session_key: str
    redirect_to: str
    contract_id: str
    digest: str
    anchor: str
    state: LoginFlowState
    person: str | None
    expires_at: float


class ConsentAnswer(StrEnum):
    """The answer to a request for consent."""

    ACCEPTED = "accepted"
    DENIED = "denied"
    GRANTED = "granted by the operator"
    WITHDRAWN = "withdrawn"

    @property
    def allows(self) -> bool:
        """Whether it allowed the client to act."""
        return self in (ConsentAnswer.ACCEPTED, ConsentAnswer.GRANTED)


@dataclass(frozen=True, slots=True)
class Consent:
    """One answer, with the digest that was reviewed and what it added."""

    id: str
    person: str
    contract_id: str
    anchor: str
    digest: str
    answer: ConsentAnswer
    delta: Access
    at: float


@dataclass(frozen=True, slots=True)
class GrantOverride:
    """What an operator grants to the clients of a contract at one origin or session key.

    Nobody is asked for consent, and sessions hold these capabilities besides the person's own.
    """

    contract_id: str
    anchor: str
    capabilities: frozenset[str]


@dataclass(frozen=True, slots=True)
class DeviceActivation:
    """A device that waits for a person to confirm it."""

    device_key: str
    deployment: str
    contract_id: str
    digest: str
    name: str
    expires_at: float


class PortalKind(StrEnum):
    """The purpose of a custom page."""

    LOGIN = "login"
    DEVICE = "device"


@dataclass(frozen=True, slots=True)
class Portal:
    """A custom page for a contract id, an origin or a deployment, or `*` for all others."""

    kind: PortalKind
    selector: str
    url: str


@dataclass(frozen=True, slots=True)
class CapabilityText:
    """The texts of a capability, from the contract that owns it."""

    key: str
    name: str
    description: str = ""
    consequence: str = ""


@dataclass(frozen=True, slots=True)
class Review:
    """What a person is asked: `delta` is the part of `asked` that is not allowed yet.

    The session would not hold the capabilities `missing`. An operator may have `granted` it in the
    person's place; if it is `settled`, there is nothing left to ask.
    """

    login: LoginFlow
    client: str
    description: str
    asked: Access
    delta: Access
    missing: frozenset[str] = frozenset()
    texts: tuple[CapabilityText, ...] = field(default=())
    granted: bool = False
    settled: bool = False


class DeploymentKind(StrEnum):
    """What a deployment consists of."""

    SERVICE = "service"
    DEVICE = "device"


class Compatibility(StrEnum):
    """What happens to a replacement that is not compatible: section 6 of the specification.

    In `mutable-dev` an incompatible migration of a contract that the deployment was accepted to
    implement needs no operator. Requests for more than was accepted need one in both.
    """

    STRICT = "strict"
    MUTABLE_DEV = "mutable-dev"


class Classification(StrEnum):
    """How far a proposal goes beyond what was accepted."""

    NONE = "none"
    UPDATE = "update"
    MIGRATION = "migration"


class PlanState(StrEnum):
    """The state of a plan."""

    PENDING = "pending"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    EXPIRED = "expired"


class MaterialState(StrEnum):
    """Whether the resources are as desired."""

    CURRENT = "current"
    PENDING = "pending"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Desired:
    """What was accepted for a deployment: the latest digest of each contract, and its uses.

    Surfaces are `id kind name action`. Resources are descriptors by kind (kv, store, consumer or
    job), contract id and alias. Shapes are the digests to use for dependencies that are not active.
    """

    contracts: Mapping[str, str] = field(default_factory=dict)
    surfaces: frozenset[str] = frozenset()
    capabilities: frozenset[str] = frozenset()
    resources: Mapping[tuple[str, str, str], Mapping[str, Any]] = field(default_factory=dict)
    shapes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Deployment:
    """A contract implementation under one name, with any number of instances.

    `version` counts changes of the desired state. Instances may call the contracts `calls` without
    a plan; `*` is every one.
    """

    id: str
    kind: DeploymentKind
    compatibility: Compatibility = Compatibility.STRICT
    disabled: bool = False
    desired: Desired = field(default_factory=Desired)
    version: int = 1
    calls: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Instance:
    """One process or machine of a deployment, identified by its session key."""

    key: str
    deployment: str
    name: str
    disabled: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """A proposal to change the desired state; `based_on` is the version of the deployment."""

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
    """The resources that reconciliation has made for a version of a deployment, by contract id."""

    deployment: str
    version: int
    status: MaterialState
    bindings: Mapping[str, Bindings] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """An instance implements a contract at one digest; `live` while its session is connected."""

    deployment: str
    instance: str
    contract_id: str
    digest: str
    live: bool
    accepted_at: float
    stale_at: float | None
    expires_at: float


class SessionHolder(StrEnum):
    """What a session belongs to."""

    SERVICE = "service"
    DEVICE = "device"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session key that may connect; `subject` is the deployment or the person.

    `surfaces` are the accepted uses of its contract, as `id kind name action`; None for all of
    them.
    """

    key: str
    holder: SessionHolder
    subject: str
    contract_id: str | None = None
    digest: str | None = None
    origin: str | None = None
    capabilities: frozenset[str] = frozenset()
    created_at: float = 0.0
    expires_at: float | None = None
    revoked_at: float | None = None
    surfaces: frozenset[str] | None = None
