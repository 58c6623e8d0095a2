"""What the tests of the callout share: contracts, an authority in memory, sessions that dial."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

from nats.aio.client import RawCredentials

from accord.authority.nats import (
    Callout,
    Cluster,
    Connections,
    ConnectRefusal,
    EmbeddedServer,
    IssuedPermissions,
    ListenAddress,
    embedded_server,
)
from accord.authority.revisions import ChangeSignal
from accord.authority.rules import AuthorityError, Code, SessionHolder, SessionRecord
from accord.authority.service import Authority
from accord.contracts import Bindings, Grants, SessionRole, digest, grants, resolve_uses, union
from accord.contracts.permissions import ConsumerBinding, QueueBinding, inbox_prefix
from accord.contracts.session_proof import connect_token, session_key
from accord.fabric.link import NatsClient
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey

_SCHEMAS = {"Any": {"type": "object"}}
_ANY = {"schema": "Any"}
_ROUTE = {"version": "v1", "input": _ANY, "output": _ANY}


def _manifest(identity: str, kind: str, **sections: Any) -> dict[str, Any]:
    return {
        "format": "trellis.contract.v1",
        "id": identity,
        "displayName": identity,
        "description": identity,
        "kind": kind,
        "schemas": _SCHEMAS,
        **sections,
    }


STOCK = _manifest(
    "stock@v1",
    "service",
    rpc={
        "Stock.Count": {**_ROUTE, "subject": "rpc.v1.Stock.Count"},
        "Stock.Secret": {**_ROUTE, "subject": "rpc.v1.Stock.Secret"},
    },
    operations={"Stock.Fill": {**_ROUTE, "progress": _ANY, "subject": "operations.v1.Stock.Fill"}},
    events={"Stock.Moved": {"version": "v1", "event": _ANY, "subject": "events.v1.Stock.Moved"}},
    feeds={
        "Stock.Live": {
            "version": "v1",
            "input": _ANY,
            "event": _ANY,
            "subject": "feeds.v1.Stock.Live",
        }
    },
)
SHOP = _manifest(
    "shop@v1",
    "service",
    uses={
        "required": {
            "stock": {
                "contract": "stock@v1",
                "rpc": {"call": ["Stock.Count"]},
                "events": {"subscribe": ["Stock.Moved"]},
            }
        }
    },
    rpc={"Shop.Buy": {**_ROUTE, "subject": "rpc.v1.Shop.Buy"}},
    events={"Shop.Sold": {"version": "v1", "event": _ANY, "subject": "events.v1.Shop.Sold"}},
    jobs={"pack": {"payload": _ANY}},
    resources={"kv": {"carts": {"purpose": "Keeps carts.", "schema": _ANY}}},
)
CLERK = _manifest(
    "clerk@v1",
    "app",
    uses={"required": {"shop": {"contract": "shop@v1", "rpc": {"call": ["Shop.Buy"]}}}},
)


def lonely() -> dict[str, Any]:
    """A contract that owns and uses nothing."""
    return _manifest("lonely@v1", "app")


BOUND = Bindings(
    kv={"carts": "acc_kv_carts"},
    consumers={"moves": ConsumerBinding("trellis", "acc_ec_moves")},
    jobs={"pack": QueueBinding("shop", "pack", "acc_jq_pack")},
)


@dataclass
class MemoryAuthority:
    """Grants what real contracts give, to known sessions; its own `sessions` and `offers`."""

    active: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {"stock@v1": STOCK, "shop@v1": SHOP}
    )
    presented: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {digest(each): each for each in (STOCK, SHOP, CLERK)}
    )
    known: dict[str, SessionRecord] = field(default_factory=dict)
    refusals: list[ConnectRefusal] = field(default_factory=list)
    here: list[tuple[str, str, str]] = field(default_factory=list)
    beats: list[tuple[str, str, str]] = field(default_factory=list)
    changes: ChangeSignal = field(default_factory=ChangeSignal)

    def admit(self, key: SigningKey, contract: dict[str, Any], **more: Any) -> None:
        """Let a session in under a contract."""
        holder = SessionHolder.SERVICE if contract["kind"] == "service" else SessionHolder.PERSON
        name = session_key(key)
        self.known[name] = SessionRecord(
            name, holder, "somebody", contract["id"], digest(contract), **more
        )

    def as_authority(self) -> Authority:
        """Itself, where a whole authority is expected."""
        return cast("Authority", self)

    @property
    def sessions(self) -> Self:
        return self

    @property
    def offers(self) -> Self:
        return self

    async def get(self, key: str) -> SessionRecord | None:
        return self.known.get(key)

    async def grants(self, key: str, digest: str) -> Grants:
        session = self.known.get(key)
        if session is None:
            raise AuthorityError(Code.UNKNOWN_SESSION, "there is no such session")
        if session.digest != digest:
            raise AuthorityError(Code.CONTRACT_CHANGED, "the session came under another contract")
        contract = self.presented[digest]
        effective = {name: union([manifest]) for name, manifest in self.active.items()}
        return grants(
            contract,
            role=SessionRole.SERVICE
            if session.holder is SessionHolder.SERVICE
            else SessionRole.CALLER,
            resolution=resolve_uses(contract, effective),
            capabilities=session.capabilities,
            bindings=BOUND,
            session_key=key,
        )

    async def connected(self, key: str, digest: str) -> bool:
        self.here.append(("connected", key, digest))
        return True

    async def disconnected(self, key: str, digest: str) -> None:
        self.here.append(("disconnected", key, digest))

    async def heartbeat(self, key: str, contract_id: str, digest: str) -> bool:
        self.beats.append((key, contract_id, digest))
        return True

    async def audit(self, refusal: ConnectRefusal) -> None:
        self.refusals.append(refusal)


@dataclass
class System:
    """A server with an authority behind it."""

    server: EmbeddedServer
    authority: MemoryAuthority
    connections: Connections
    callout: Callout

    @property
    def cluster(self) -> Cluster:
        return self.server.cluster


@asynccontextmanager
async def running_system(folder: Path) -> AsyncIterator[System]:
    clock, issued, authority = SystemClock(), IssuedPermissions(), MemoryAuthority()
    async with embedded_server(folder, ListenAddress(), clock) as server:
        callout = Callout(
            authority.as_authority(), server.cluster, clock, issued, audit=authority.audit
        )
        connections = Connections(authority.as_authority(), server.cluster, clock, issued)
        async with callout.listening(), connections.watching():
            yield System(server, authority, connections, callout)


class Tidy(NatsClient):
    """A client that closes the socket of an attempt before the next one."""

    async def _connect_to_server(self, server: Any) -> None:
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(server)


@dataclass
class Dialled:
    """A session's connection, with what the server complained of and when it was cut."""

    client: NatsClient
    inbox: str
    complaints: list[str] = field(default_factory=list)
    cuts: int = 0

    async def may_publish(self, subject: str) -> bool:
        return await self._unopposed(self.client.publish(subject, b"{}"))

    async def may_subscribe(self, subject: str) -> bool:
        return await self._unopposed(self.client.subscribe(subject))

    async def _unopposed(self, act: Any) -> bool:
        before = len(self.complaints)
        await act
        await self.client.flush()
        return len(self.complaints) == before


@asynccontextmanager
async def dialled(
    cluster: Cluster, key: SigningKey, contract: dict[str, Any] | str, token: Any = None
) -> AsyncIterator[Dialled]:
    """Connect as a session does: as the sentinel, with a token that is signed anew each time."""
    named = contract if isinstance(contract, str) else digest(contract)
    latest = 0

    def sign() -> str:
        nonlocal latest
        latest = max(latest + 1, int(SystemClock().now()))
        return connect_token(key, named, latest)

    found = Dialled(Tidy(), inbox_prefix(session_key(key)))

    async def complain(error: Exception) -> None:
        found.complaints.append(str(error))

    async def cut() -> None:
        found.cuts += 1

    try:
        await found.client.connect(
            list(cluster.urls),
            user_credentials=RawCredentials(cluster.sentinel.text),
            token=token or sign,
            inbox_prefix=found.inbox,
            allow_reconnect=True,
            max_reconnect_attempts=2 if token is None else 1,
            reconnect_time_wait=0.05,  # type: ignore[arg-type]
            connect_timeout=10,
            error_cb=complain,
            disconnected_cb=cut,
        )
        yield found
    finally:
        await found.client.close()


async def until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - anything may make it true
            await asyncio.sleep(0.01)
