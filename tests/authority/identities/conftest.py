"""Identities on a real authority, to which one service offers its contract."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from accord.authority.admin import AdminCommands
from accord.authority.contracts import builtins
from accord.authority.http import NatsTransport, PlanRequesters, routes
from accord.authority.identities import Identities, LoginFlow, Person
from accord.authority.rules import (
    AuthorityError,
    Code,
    DeploymentKind,
    Materialized,
    MaterialState,
    SessionRecord,
)
from accord.authority.service import Authority, open_authority
from accord.contracts import digest
from accord.contracts.session_proof import (
    connect_message,
    flow_message,
    login_message,
    prove,
    session_key,
)
from accord.kernel import canonical
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey
from accord.testing import VirtualClock

ORIGIN = "https://app.example"
BACK = f"{ORIGIN}/back?next=%2Fhome"
TOKEN = "the-operators-token"
PASSWORD = "correct horse battery"
READ, WRITE = "notes::notes.read", "notes::notes.write"


def notes() -> dict[str, Any]:
    """A service with one RPC for readers and one for writers."""
    nothing = {"schema": "Nothing"}
    return {
        "format": "trellis.contract.v1",
        "id": "notes@v1",
        "displayName": "Notes",
        "description": "Keeps notes.",
        "kind": "service",
        "schemas": {"Nothing": {"type": "object"}},
        "capabilities": {
            READ: {"displayName": "Read notes", "description": "See what was noted."},
            WRITE: {
                "displayName": "Write notes",
                "description": "Note something.",
                "consequence": "Others will see it.",
            },
        },
        "rpc": {
            name: {
                "version": "v1",
                "subject": f"rpc.v1.{name}",
                "input": nothing,
                "output": nothing,
                "capabilities": {"call": [key]},
            }
            for name, key in (("Notes.List", READ), ("Notes.Add", WRITE))
        },
    }


def client_contract(
    *calls: str, kind: str = "app", identity: str = "desk@v1", contract: str = "notes@v1"
) -> dict[str, Any]:
    """An app that calls the service."""
    used = {"contract": contract, "rpc": {"call": list(calls)}}
    uses = {"required": {"notes": used}}
    return {
        "format": "trellis.contract.v1",
        "id": identity,
        "displayName": "Desk <b>",
        "description": "Shows notes.",
        "kind": kind,
        **({"uses": uses} if calls else {}),
    }


@dataclass
class House:
    """Everything a test of identities needs."""

    authority: Authority
    clock: VirtualClock
    identities: Identities

    async def offer(self, manifest: Mapping[str, Any], deployment: str = "notes") -> SigningKey:
        """Let an instance of a new deployment offer a contract; its key."""
        key, authority = SigningKey.generate(), self.authority
        await authority.deployments.create(deployment, DeploymentKind.SERVICE)
        await authority.deployments.add_instance(deployment, session_key(key), f"{deployment}-1")
        presented = (session_key(key), digest(manifest), canonical.encode(manifest), "test")
        with pytest.raises(AuthorityError) as waiting:
            await authority.bootstrap.run(*presented)
        assert waiting.value.code is Code.AUTHORITY_UPDATE_REQUIRED
        await authority.plans.accept(str(waiting.value.where), "test")
        version = (await authority.deployments.get(deployment)).version
        await authority.deployments.materialize(
            Materialized(deployment, version, MaterialState.CURRENT)
        )
        await authority.bootstrap.run(*presented)
        await authority.offers.connected(session_key(key))
        await authority.catalog.refresh()
        return key

    async def held(self, key: SigningKey) -> frozenset[str]:
        session = await self.authority.sessions.get(session_key(key))
        assert session is not None
        return session.capabilities

    async def is_over(self, key: SigningKey) -> bool:
        session = await self.authority.sessions.get(session_key(key))
        return session is not None and session.revoked_at is not None

    async def person(self, name: str = "Ann", *capabilities: str) -> Person:
        return await self.identities.people.add(name, capabilities)

    async def begin(
        self, key: SigningKey, manifest: Mapping[str, Any], redirect_to: str = BACK
    ) -> LoginFlow:
        return await self.identities.login_flows.begin(
            session_key(key),
            redirect_to,
            {"page": 1},
            digest(manifest),
            canonical.encode(manifest),
            prove(key, login_message(redirect_to, {"page": 1})),
        )

    async def bind(self, key: SigningKey, address: str) -> SessionRecord:
        flow = address.rpartition("flowId=")[2]
        return await self.identities.sessions.bind(
            flow, session_key(key), prove(key, flow_message(flow))
        )

    async def log_in(
        self, person: Person, key: SigningKey, manifest: Mapping[str, Any]
    ) -> SessionRecord:
        login = await self.begin(key, manifest)
        return await self.bind(key, await self.identities.login_flows.approve(login, person))


@asynccontextmanager
async def opened(folder: str | Path, clock: VirtualClock) -> AsyncIterator[House]:
    ids = UlidSource(clock)
    async with open_authority(folder, clock, ids, builtins(), round_seconds=None) as authority:
        yield House(authority, clock, Identities(authority, clock, ids))


@pytest.fixture(scope="session")
def authority_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of an authority to which a service offers its contract, to be copied."""
    folder = tmp_path_factory.mktemp("authority") / "stores"

    async def make() -> None:
        async with opened(folder, VirtualClock()) as house:
            await house.offer(notes())

    asyncio.run(make())
    return folder


@pytest.fixture
async def house(
    authority_template: Path, tmp_path: Path, virtual_clock: VirtualClock
) -> AsyncIterator[House]:
    folder = shutil.copytree(authority_template, tmp_path / "stores")
    async with opened(folder, virtual_clock) as made:
        yield made


@dataclass
class Web:
    """The routes of an authority in this process, and the browser or program that asks."""

    house: House
    app: Starlette
    http: httpx.AsyncClient
    operating: AdminCommands
    requesters: PlanRequesters
    token: str = TOKEN

    async def admin(self, verb: str, **body: Any) -> httpx.Response:
        return await self.http.post(
            f"/admin/v1/{verb}", json=body, headers={"authorization": f"Bearer {self.token}"}
        )

    def signed(self, key: SigningKey, contract: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """The body of a bootstrap, or of what is proved like one."""
        iat = int(self.house.clock.now()) + more.pop("late", 0)
        return {
            "sessionKey": session_key(key),
            "contractDigest": digest(contract),
            "iat": iat,
            "sig": prove(key, connect_message(digest(contract), iat)),
            **more,
        }

    async def submit(self, page: httpx.Response, **fields: str) -> httpx.Response:
        """Send the first form of a page as a browser would, with what was typed or pressed."""
        action = _found(page.text, 'action="', '"')
        hidden = re.findall('type="hidden" name="([^"]*)" value="([^"]*)"', page.text)
        return await self.http.post(
            action, data={**dict(hidden), **fields}, headers={"origin": "http://authority.test"}
        )

    async def enter(self, name: str = "Ann", onwards: str = "/login") -> httpx.Response:
        page = await self.http.get(onwards)
        return await self.submit(page, name=name, password=PASSWORD)


def _found(text: str, before: str, after: str) -> str:
    return text.partition(before)[2].partition(after)[0]


@pytest.fixture
async def web(house: House) -> AsyncIterator[Web]:
    operating = AdminCommands(house.authority, house.identities, None, "http://authority.test")
    transport = NatsTransport(("nats://127.0.0.1:4222",), "the.sentinel.jwt", "SUSEED")
    requesters = PlanRequesters(house.authority, house.clock)
    made = routes(
        house.authority,
        house.identities,
        operating,
        transport,
        house.clock,
        token=TOKEN,
        requesters=requesters,
    )
    app = Starlette(routes=list(made))
    asgi = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=asgi, base_url="http://authority.test") as http:
        yield Web(house, app, http, operating, requesters)


@pytest.fixture
def client() -> Callable[..., dict[str, Any]]:
    """Makes the contract of an app or a program."""
    return client_contract
