"""A small town, whose log is tried out on both engines."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from accord.community.log import EventLog, open_log
from accord.community.rules import Event, compose_event, manifests
from accord.community.store import COMMUNITY_STORE
from accord.kernel.clock import format_time
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey
from accord.storage import open_store
from accord.testing import VirtualClock

POLICY = {
    "capability_token_ttl_seconds": 3600,
    "default_member_can_invite": True,
    "federation_enabled": False,
    "min_signatures_to_demote": 1,
    "min_signatures_to_invite": 1,
    "min_signatures_to_revoke": 1,
}


def key(name: str) -> SigningKey:
    return SigningKey(name.encode().ljust(32, b"."))


@dataclass
class Town:
    """Keys of people who will meet, and the places where their nodes keep things."""

    path: Path
    clock: VirtualClock
    root: SigningKey = field(default_factory=lambda: key("root"))
    founder: SigningKey = field(default_factory=lambda: key("founder"))

    def __post_init__(self) -> None:
        self._counters: dict[str, int] = {}

    @property
    def id(self) -> str:
        return self.root.id

    @asynccontextmanager
    async def log(
        self, who: SigningKey | None = None, where: str | None = None, **options: Any
    ) -> AsyncIterator[EventLog]:
        """The log on somebody's node; by default the founder's, kept in SQLite."""
        owner = who or self.founder
        folder = self.path / owner.id[-8:]
        folder.mkdir(exist_ok=True)
        async with (
            open_store(where or folder, COMMUNITY_STORE) as store,
            open_log(
                store,
                options.pop("community_id", self.id),
                key=owner,
                clock=self.clock,
                folder=options.pop("folder", folder),
                ids=self.ids(owner.id),
                **options,
            ) as log,
        ):
            yield log

    def ids(self, who: str) -> UlidSource:
        """Ids that are the same in every run, and another's in every call."""
        turn = self._counters[who] = self._counters.get(who, 0) + 1
        return UlidSource(self.clock, lambda: hash((who[-8:], turn)) & (2**79 - 1))

    async def found(self, log: EventLog) -> Event:
        """Let the root key found the community."""
        return await log.append(
            "community.created",
            {"name": "Town", "founder_node_id": self.founder.id, "policy": POLICY},
            key=self.root,
        )

    async def admit(self, host: EventLog, guest: SigningKey, level: str = "member") -> list[Event]:
        """Let somebody be invited by a log's owner, and join."""
        invite = await host.append(
            "community.member.invited",
            {
                "invitee_node_id": guest.id,
                "display_name": "Guest",
                "initial_level": level,
                "expires_at": format_time(self.clock.now() + 86400),
            },
        )
        joined = self.join(guest, invite)
        await host.receive([joined.encode()])
        return [invite, joined]

    def join(self, guest: SigningKey, invite: Event) -> Event:
        about = {
            "display_name": "Guest",
            "community_id": self.id,
            "profile": "hearth",
            "endpoints": [],
            "capabilities": [],
        }
        return compose_event(
            guest,
            "community.member.joined",
            {
                "invite_event_id": invite.event_id,
                "node_manifest": manifests.sign_node(guest, about, now=self.clock.now()),
            },
            event_id=self.ids(guest.id).new(),
            lamport=invite.lamport + 1,
            wall_clock=format_time(self.clock.now()),
            community_id=self.id,
            author_seq=1,
            prev=None,
        )

    def chain(self, who: SigningKey, after: Event | None, count: int, **more: Any) -> list[Event]:
        """Market posts that follow an event of their author."""
        ids = self.ids(who.id)
        made: list[Event] = []
        for number in range(count):
            lamport = more.get("lamport", after.lamport + 1 if after else 1)
            after = compose_event(
                who,
                "market.post.created",
                post(f"{more.get('name', 'post')}-{number}"),
                event_id=ids.new(),
                lamport=lamport,
                wall_clock=format_time(self.clock.now()),
                community_id=more.get("community_id", self.id),
                author_seq=(after.author_seq or 0) + 1 if after else 1,
                prev=after.hash if after else None,
            )
            made.append(after)
        return made


def post(client_id: str, body: str = "A ladder, to lend.") -> dict[str, Any]:
    return {
        "client_id": client_id,
        "category": "offer",
        "title": "Ladder",
        "body": body,
        "tags": ["tools"],
        "ttl_seconds": 86400,
    }


@pytest.fixture
def town(tmp_path: Path, virtual_clock: VirtualClock) -> Town:
    return Town(tmp_path, virtual_clock)


@pytest.fixture
def post_data() -> Callable[..., dict[str, Any]]:
    return post


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a store on each engine."""
    if request.param == "sqlite":
        return str(tmp_path / "stores")
    return str(request.getfixturevalue("postgres_url"))
