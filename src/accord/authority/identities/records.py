"""What is known of people and of what they let clients do. Pure values.

A client is anchored where nobody else can stand in for it: a browser app at its origin, everything
else at its session key. Times are seconds since the epoch.
"""

from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who can log in.

    Attributes:
        capabilities: The keys that the person may pass on to clients.
    """

    id: str
    name: str
    capabilities: frozenset[str]
    disabled: bool
    has_password: bool
    created_at: float


@dataclass(frozen=True, slots=True)
class Access:
    """What a client asks for, or is allowed: surfaces as `id kind name action`, and keys."""

    surfaces: frozenset[str] = frozenset()
    capabilities: frozenset[str] = frozenset()

    def __sub__(self, other: "Access") -> "Access":
        return Access(self.surfaces - other.surfaces, self.capabilities - other.capabilities)

    def __or__(self, other: "Access") -> "Access":
        return Access(self.surfaces | other.surfaces, self.capabilities | other.capabilities)

    def __bool__(self) -> bool:
        return bool(self.surfaces or self.capabilities)


class LoginState(StrEnum):
    """Where a login stands."""

    BEGUN = "begun"
    APPROVED = "approved"
    DENIED = "denied"
    BOUND = "bound"


@dataclass(frozen=True, slots=True)
class Login:
    """A session on its way to a person.

    Attributes:
        id: What stands in the address of its page; it gives no right to bind.
        anchor: The origin of a browser app, or the session key of anything else.
        person: Who answered.
    """

    id: str
    session_key: str
    redirect_to: str
    contract_id: str
    digest: str
    anchor: str
    state: LoginState
    person: str | None
    expires_at: float


class Answer(StrEnum):
    """What became of a request for consent."""

    ACCEPTED = "accepted"
    DENIED = "denied"
    GRANTED = "granted by the operator"
    WITHDRAWN = "withdrawn"

    @property
    def allows(self) -> bool:
        """Whether it let the client act."""
        return self in (Answer.ACCEPTED, Answer.GRANTED)


@dataclass(frozen=True, slots=True)
class Consent:
    """One answer, with what was reviewed: the digest, and what it added to what was allowed."""

    id: str
    person: str
    contract_id: str
    anchor: str
    digest: str
    answer: Answer
    delta: Access
    at: float


@dataclass(frozen=True, slots=True)
class Override:
    """What an operator grants to the clients of a contract at one origin or session key.

    Nobody is asked for consent, and the session holds these keys besides the person's own.
    """

    contract_id: str
    anchor: str
    capabilities: frozenset[str]


@dataclass(frozen=True, slots=True)
class Activation:
    """A device that waits for a person to confirm it."""

    device_key: str
    deployment: str
    contract_id: str
    digest: str
    name: str
    expires_at: float


class PortalKind(StrEnum):
    """What a page of somebody else's is for."""

    LOGIN = "login"
    DEVICE = "device"


@dataclass(frozen=True, slots=True)
class Portal:
    """A custom page: for a contract id or an origin, for a deployment, or `*` for all others."""

    kind: PortalKind
    selector: str
    url: str


@dataclass(frozen=True, slots=True)
class CapabilityText:
    """What a capability means, in the words of the contract that owns it."""

    key: str
    name: str
    description: str = ""
    consequence: str = ""


@dataclass(frozen=True, slots=True)
class Review:
    """What a person decides about.

    Attributes:
        asked: Everything that the client's contract asks for.
        delta: What of it is not allowed yet.
        missing: Keys that it asks for and the session would not hold.
        texts: What the keys mean.
        granted: Whether an operator has agreed in the person's place.
        settled: Whether there is nothing left to ask.
    """

    login: Login
    client: str
    description: str
    asked: Access
    delta: Access
    missing: frozenset[str] = frozenset()
    texts: tuple[CapabilityText, ...] = field(default=())
    granted: bool = False
    settled: bool = False
