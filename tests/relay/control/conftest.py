"""A connector's control half on both engines, with a clock that stands still."""

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from accord.kernel import tokens
from accord.relay.connector import (
    RELAY,
    Control,
    ControlSettings,
    Directory,
    InboundEvent,
    IssuedCredentials,
    Keyring,
    ManagedTokens,
    Principal,
)
from accord.relay.rules import MessageEvent, SessionSource
from accord.storage import Store, journal, open_store
from accord.testing import VirtualClock
from accord.testing.servers import Server


@dataclass
class Permissions:
    """A platform's answers: by (user, channel), None unless told otherwise."""

    views: dict[tuple[str, str], bool | None] = field(default_factory=dict)
    manages: dict[tuple[str, str], bool | None] = field(default_factory=dict)
    asked: int = 0
    failure: Exception | None = None

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        self.asked += 1
        if self.failure:
            raise self.failure
        return self.views.get((user_id, channel_id))

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        if self.failure:
            raise self.failure
        return self.manages.get((user_id, channel_id))


@dataclass
class Half:
    """Everything a test of the control half needs."""

    store: Store
    clock: VirtualClock
    keyring: Keyring
    directory: Directory
    control: Control
    chat: Permissions
    numbers: Iterator[int] = field(default_factory=itertools.count)

    async def enrol(
        self, instance: str = "a1", tenant: str = "t1", **given: Any
    ) -> IssuedCredentials:
        token = await self.control.mint_token(tenant, instance, name=given.pop("name", None))
        return await self.control.enrol(token.token, f"gw-{instance}", **given)

    async def principal(self, instance: str = "a1", tenant: str = "t1") -> Principal:
        await self.enrol(instance, tenant)
        return await self.control.principal(instance)

    def bearer(self, credentials: IssuedCredentials, ttl: int = 300) -> str:
        return tokens.make(credentials.gateway_id, credentials.secret, int(self.clock.now()), ttl)

    async def journal(self) -> list[str]:
        entries = await self.store.read(lambda c: journal.read(c, "relay.control"))
        return [entry.body for entry in entries]

    async def rows(self, table: Any) -> list[dict[str, Any]]:
        found = await self.store.read(lambda c: c.execute(table.select()).mappings().all())
        return [dict(row) for row in found]

    async def say(self, text: str, user: str = "u1", **where: Any) -> str | None:
        """Send a message that may be about linking; the bot's answer, or None."""
        where = {"event_id": f"said-{next(self.numbers)}", **where}
        reply = await self.directory.consume_link_dm(message(text, user, **where))
        return None if reply is None else reply.text


def message(
    text: str = "hello",
    user: str | None = "u1",
    *,
    chat: str = "dm-u1",
    kind: str = "dm",
    scope: str | None = None,
    parent: str | None = None,
    **given: Any,
) -> InboundEvent:
    source = SessionSource(
        platform="chat",
        chat_id=chat,
        chat_type=kind,
        user_id=user,
        scope_id=scope,
        parent_chat_id=parent,
    )
    return InboundEvent(
        "chat", "bot", given.pop("event_id", "e1"), MessageEvent(text, source), **given
    )


@pytest.fixture
def engine() -> str:
    """The engine of the store; what goes near it is tried on `postgres` too, by parameter."""
    return "sqlite"


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an empty store, to be copied: quicker than making one for each test."""
    folder = tmp_path_factory.mktemp("relay") / "stores"
    asyncio.run(_make(str(folder)))
    return folder


@pytest.fixture(scope="session")
def postgres_shared(postgres: Server) -> str:
    """The address of a database with an empty store, which each test empties first."""
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE relay_control")
    url = f"{postgres.url.rpartition('/')[0]}/relay_control"
    asyncio.run(_make(url))
    return url


async def _make(where: str) -> None:
    async with open_store(where, RELAY):
        pass


@pytest.fixture
def where(request: pytest.FixtureRequest, engine: str, tmp_path: Path) -> str:
    """The place of an empty store."""
    if engine == "sqlite":
        shutil.copytree(request.getfixturevalue("sqlite_template"), tmp_path / "stores")
        return str(tmp_path / "stores")
    url = str(request.getfixturevalue("postgres_shared"))
    with psycopg.connect(url, autocommit=True) as connection:
        named = connection.execute(
            "SELECT string_agg('relay.' || tablename, ', ') FROM pg_tables"
            " WHERE schemaname = 'relay' AND tablename <> 'alembic_version'"
        ).fetchone()
        connection.execute(f"TRUNCATE {named[0]}".encode() if named else b"")
        connection.execute("INSERT INTO relay.change_head (id, version) VALUES (1, 0)")
    return url


@pytest.fixture
def settings() -> ControlSettings:
    return ControlSettings()


@pytest.fixture
def managed() -> ManagedTokens:
    return ManagedTokens()


@pytest.fixture
async def half(
    where: str,
    tmp_path: Path,
    settings: ControlSettings,
    managed: ManagedTokens,
    virtual_clock: VirtualClock,
) -> AsyncIterator[Half]:
    keyring = Keyring.load(tmp_path / "relay.key")
    chat = Permissions()
    async with open_store(where, RELAY) as store:
        directory = Directory(
            store, keyring, virtual_clock, settings, managed=managed, platforms={"chat": chat}
        )
        yield Half(
            store, virtual_clock, keyring, directory, Control(directory, virtual_clock), chat
        )
        await directory.close()


@pytest.fixture
def inbound() -> Callable[..., InboundEvent]:
    return message
