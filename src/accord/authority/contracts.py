"""The built-in contracts: `trellis.core`, `auth`, `health`, `jobs` and `state`.

Payloads are camel case on the wire and open objects; times are seconds since the epoch. Whose state
`trellis.state@v1` serves follows from the caller's session and never from the request: the contract
that the session presented, and its holder.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic import ValidationError as Unreadable
from pydantic.alias_generators import to_camel

from accord.contracts.authoring import Contract
from accord.fabric.rules.errors import ValidationError
from accord.kernel.canonical import MAX_INTEGER, pointer


class Payload(BaseModel):
    """A payload; its fields are the contract's members in Python's spelling."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True
    )

    @classmethod
    def read(cls, value: Any) -> Self:
        """The payload of a validated value; ValidationError if a number is out of range."""
        try:
            return cls.model_validate(value)
        except Unreadable as error:
            issues = [
                {"path": pointer(*each["loc"]), "message": each["msg"]} for each in error.errors()
            ]
            raise ValidationError("the payload cannot be read", issues=issues) from None

    def wire(self) -> dict[str, Any]:
        """As JSON; what is at its default stays out, a null that was meant stays in."""
        return self.model_dump(by_alias=True, exclude_defaults=True, mode="json")


class Nothing(Payload):
    """An object of which nothing is asked."""


AUTH_ID = "trellis.auth@v1"
SESSIONS_READ = "trellis.auth::sessions.read"
SESSIONS_REVOKE = "trellis.auth::sessions.revoke"
CONNECTIONS_READ = "trellis.auth::connections.read"
CONNECTIONS_KICK = "trellis.auth::connections.kick"

_MAX_SESSIONS_PAGE = 1000


class SessionRef(Payload):
    """Which session."""

    session_key: str = Field(min_length=1, max_length=64)


class SessionFacts(Payload):
    """What a session is and holds."""

    holder: Literal["service", "device", "person"]
    subject: str
    contract_id: str | None = None
    digest: str | None = None
    capabilities: list[str]
    expires_at: float | None = None


class SessionEntry(SessionFacts):
    """A session with its key."""

    session_key: str
    origin: str | None = None
    created_at: float


class SessionsList(Payload):
    """Whose sessions, page by page."""

    subject: str | None = Field(default=None, max_length=256)
    after: str | None = Field(default=None, max_length=64)
    limit: int = Field(default=100, ge=1, le=_MAX_SESSIONS_PAGE)


class SessionsPage(Payload):
    """Sessions in the order of their keys; `next` where there are more."""

    sessions: list[SessionEntry]
    next: str | None = None


class Done(Payload):
    """Whether something was there to be done."""

    done: bool


class SessionRevoked(Payload):
    """A session ended before its time."""

    session_key: str
    revoked_by: str
    at: float


class Connection(Payload):
    """A session's connection to the server."""

    session_key: str
    holder: Literal["service", "device", "person"]
    subject: str
    server_id: str | None = None
    client_id: int | None = None
    connected_at: float | None = None


class ConnectionsPage(Payload):
    """The connections that are there."""

    connections: list[Connection]
    next: str | None = None


class ConnectionChanged(Payload):
    """A connection came, went, or was ended."""

    session_key: str
    holder: Literal["service", "device", "person"]
    subject: str
    at: float
    by: str | None = None


def auth_contract() -> Contract:
    """The contract, as it is written."""
    auth = Contract(
        AUTH_ID,
        display_name="Trellis auth",
        description=(
            "Sessions and connections: your own, and those of others with the right capability."
        ),
    )
    auth.capability("sessions.read", "Read sessions", "List everybody's sessions.")
    auth.capability(
        "sessions.revoke",
        "Revoke sessions",
        "End the session of anybody.",
        consequence="Whoever uses the session is disconnected and must log in again.",
    )
    auth.capability("connections.read", "Read connections", "List and follow connections.")
    auth.capability(
        "connections.kick",
        "End connections",
        "Disconnect a session, which may connect again.",
        consequence="Calls under way on the connection fail.",
    )
    for kind in ("NotFoundError", "UnauthorizedError"):
        auth.error(kind)
    auth.rpc("Auth.Sessions.Me", Nothing, SessionEntry)
    auth.rpc("Auth.Sessions.Logout", Nothing, Done)
    # Any service must be able to judge its callers; who may ask is checked by the holder's kind.
    auth.rpc(
        "Auth.Sessions.Resolve",
        SessionRef,
        SessionFacts,
        errors=["NotFoundError", "UnauthorizedError"],
    )
    auth.rpc("Auth.Sessions.List", SessionsList, SessionsPage, call=["sessions.read"])
    auth.rpc(
        "Auth.Sessions.Revoke", SessionRef, Done, call=["sessions.revoke"], errors=["NotFoundError"]
    )
    auth.rpc("Auth.Connections.List", SessionsList, ConnectionsPage, call=["connections.read"])
    auth.rpc("Auth.Connections.Kick", SessionRef, Done, call=["connections.kick"])
    auth.event("Auth.Sessions.Revoked", SessionRevoked)
    for name in ("Opened", "Closed", "Kicked"):
        auth.event(f"Auth.Connections.{name}", ConnectionChanged, subscribe=["connections.read"])
    return auth


CORE_ID = "trellis.core@v1"
CATALOG_READ = "trellis.core::catalog.read"
CONTRACT_READ = "trellis.core::contract.read"


class CatalogReply(Payload):
    """The catalog, in the form trellis.catalog.v1."""

    catalog: dict[str, Any]


class ContractGet(Payload):
    """Which contract."""

    digest: str = Field(min_length=1, max_length=64)


class ContractReply(Payload):
    """A known contract."""

    contract: dict[str, Any]


class SurfaceStatus(Payload):
    """Which surface, and what the caller means to do with it."""

    contract_id: str = Field(max_length=256)
    kind: Literal["rpc", "operation", "event", "feed"]
    surface: str = Field(max_length=256)
    action: str | None = Field(default=None, max_length=32)


class SurfaceStatusReply(Payload):
    """How the surface stands for the caller; advisory, it grants nothing."""

    status: Literal[
        "unknown_contract", "unknown_surface", "unauthorized", "unavailable", "available"
    ]
    reason: str | None = None
    missing_capabilities: list[str] | None = None
    live_implementer: bool | None = None
    runtime: Literal["live", "no_live_implementer", "disabled"] | None = None


def core_contract() -> Contract:
    """The contract, as it is written."""
    core = Contract(
        CORE_ID,
        display_name="Trellis core",
        description="List active contracts, read manifests, and ask for the state of a surface.",
    )
    core.capability("catalog.read", "Read the catalog", "List the contracts that are active.")
    core.capability("contract.read", "Read contracts", "Read the manifest of a known contract.")
    core.error("NotFoundError")
    core.rpc("Trellis.Catalog", Nothing, CatalogReply, call=["catalog.read"])
    core.rpc(
        "Trellis.Contract.Get",
        ContractGet,
        ContractReply,
        call=["contract.read"],
        errors=["NotFoundError"],
    )
    core.rpc("Trellis.Surface.Status", SurfaceStatus, SurfaceStatusReply)
    return core


HEALTH_ID = "trellis.health@v1"


class Heartbeat(Payload):
    """An instance lives, and implements this contract at this digest."""

    session_key: str = Field(min_length=1, max_length=64)
    contract_id: str = Field(max_length=256)
    contract_digest: str = Field(max_length=64)
    status: Literal["healthy", "degraded", "unhealthy"] = "healthy"
    at: float
    summary: str | None = Field(default=None, max_length=1000)
    checks: dict[str, Any] | None = None


def health_contract() -> Contract:
    """The contract, as it is written."""
    health = Contract(
        HEALTH_ID, display_name="Trellis health", description="Heartbeats of services and devices."
    )
    health.capability(
        "heartbeats.read", "Follow heartbeats", "See which instances are alive, and their state."
    )
    health.event("Health.Heartbeat", Heartbeat, subscribe=["heartbeats.read"])
    return health


JOBS_ID = "trellis.jobs@v1"
JOBS_READ = "trellis.jobs::admin.read"
JOBS_MUTATE = "trellis.jobs::admin.mutate"

MAX_JOBS_PAGE = 500


class JobRef(Payload):
    """Which job."""

    job_id: str = Field(min_length=1, max_length=128)


class JobEntry(Payload):
    """Where a job stands."""

    job_id: str
    service: str
    job_type: str
    state: str
    tries: int
    max_tries: int | None = None
    error: Any = None
    progress: Any = None
    deadline: str | None = None
    created_at: str
    updated_at: str


class JobDetail(JobEntry):
    """A job with what it was given and what it came to."""

    payload: Any = None
    result: Any = None
    context: Any = None
    logs: list[Any] | None = None


class JobsList(Payload):
    """Which jobs, the latest first."""

    service: str | None = Field(default=None, max_length=256)
    job_type: str | None = Field(default=None, max_length=256)
    state: list[str] | None = Field(default=None, max_length=16)
    before: str | None = Field(default=None, max_length=128)
    limit: int = Field(default=100, ge=1, le=MAX_JOBS_PAGE)


class JobsPage(Payload):
    """A page; `next` is the `before` of the following one, where there is one."""

    jobs: list[JobEntry]
    next: str | None = None


class JobReply(Payload):
    """The job, with everything."""

    job: JobDetail


class JobChanged(Payload):
    """The job as the change leaves it."""

    job: JobEntry


def jobs_contract() -> Contract:
    """The contract, as it is written."""
    jobs = Contract(
        JOBS_ID,
        display_name="Trellis jobs",
        description="See everybody's jobs; retry, dismiss and cancel them.",
    )
    jobs.capability("admin.read", "Read jobs", "View the jobs of every service, dead ones too.")
    jobs.capability(
        "admin.mutate",
        "Change jobs",
        "Retry, dismiss or cancel the jobs of any service.",
        consequence="Can run work again, or keep it from running.",
    )
    for kind in ("NotFoundError", "ConflictError"):
        jobs.error(kind)
    jobs.rpc("Jobs.List", JobsList, JobsPage, call=["admin.read"])
    jobs.rpc("Jobs.Get", JobRef, JobReply, call=["admin.read"], errors=["NotFoundError"])
    for name in ("Retry", "Dismiss", "Cancel"):
        jobs.rpc(
            f"Jobs.{name}",
            JobRef,
            JobChanged,
            call=["admin.mutate"],
            errors=["NotFoundError", "ConflictError"],
        )
    return jobs


STATE_ID = "trellis.state@v1"

MAX_STATE_KEY = 512
MAX_STATE_PAGE = 500


class StateRef(Payload):
    """Which entry of which store."""

    store: str = Field(min_length=1, max_length=256)
    key: str | None = Field(default=None, max_length=MAX_STATE_KEY)


class StateEntry(Payload):
    """What is kept: written under `stateVersion`, which may be an older one than the contract's."""

    key: str | None = None
    value: Any
    state_version: str
    revision: int
    updated_at: float


class StateGetReply(Payload):
    """The entry, where there is one."""

    entry: StateEntry | None = None


class StatePut(StateRef):
    """A value of the contract's current version; conditional where a revision is expected."""

    value: Any
    expected_revision: int | None = Field(default=None, ge=0, le=MAX_INTEGER)


class StatePutReply(Payload):
    """Whether it was written, at which revision; what was there instead, where it was not."""

    applied: bool
    revision: int
    found: StateEntry | None = None


class StateDelete(StateRef):
    """Which entry to delete; conditional where a revision is expected."""

    expected_revision: int | None = Field(default=None, ge=1, le=MAX_INTEGER)


class StateDeleteReply(Payload):
    """Whether something was deleted; what was there instead, where a condition failed."""

    applied: bool
    found: StateEntry | None = None


class StateList(Payload):
    """Entries of a map store in the order of their keys."""

    store: str = Field(min_length=1, max_length=256)
    prefix: str | None = Field(default=None, max_length=MAX_STATE_KEY)
    after: str | None = Field(default=None, max_length=MAX_STATE_KEY)
    limit: int = Field(default=100, ge=1, le=MAX_STATE_PAGE)


class StateListReply(Payload):
    """A page; `next` is the `after` of the following one, where there is one."""

    entries: list[StateEntry]
    next: str | None = None


def state_contract() -> Contract:
    """The contract, as it is written."""
    state = Contract(
        STATE_ID,
        display_name="Trellis state",
        description=(
            "Store the named state that contracts declare, separately for each holder of a session."
        ),
    )
    refusals = ["NotFoundError", "ValidationError"]
    for kind in (*refusals, "ConflictError"):
        state.error(kind)
    state.rpc("State.Get", StateRef, StateGetReply, errors=refusals)
    state.rpc("State.Put", StatePut, StatePutReply, errors=[*refusals, "ConflictError"])
    state.rpc("State.Delete", StateDelete, StateDeleteReply, errors=refusals)
    state.rpc("State.List", StateList, StateListReply, errors=refusals)
    return state


@cache
def builtins() -> Mapping[str, Mapping[str, Any]]:
    """The manifest of each built-in contract, by its id: always active, one digest for each."""
    contracts = {
        CORE_ID: core_contract(),
        AUTH_ID: auth_contract(),
        STATE_ID: state_contract(),
        HEALTH_ID: health_contract(),
        JOBS_ID: jobs_contract(),
    }
    return MappingProxyType({each: contract.manifest() for each, contract in contracts.items()})
