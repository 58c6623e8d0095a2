"""The communities of a node, and the files that its home keeps for them beside the store."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from accord.community.bus import Topics
from accord.community.errors import Code, CommunityError
from accord.community.identity import community_folder
from accord.community.log import EventLog, LogUpdate, RestoreNote, SigningMarker
from accord.community.rules import formats
from accord.community.rules.event import Event
from accord.community.rules.formats import Level, display_id
from accord.community.rules.manifests import sign_community
from accord.community.rules.state import CommunityState
from accord.community.sync import LogHoldings
from accord.kernel.clock import Clock
from accord.kernel.files import replace_private
from accord.kernel.signing import SigningKey

_CURRENT: Final = ".current"
_LEFT: Final = "left"
_NAME: Final = "name"
_SIGNED: Final = "signed.*"
_LONGEST: Final = 1000


@dataclass(frozen=True, slots=True)
class CommunityFolders:
    """The community folders of one home."""

    home: Path

    def joined(self) -> frozenset[str]:
        """Display ids of the communities that this home has signed in and not left."""
        return frozenset(each.name for each in self._signed() if not (each / _LEFT).exists())

    @property
    def are_new(self) -> bool:
        """Whether this home has never signed in any community, one that it has left included."""
        return not self._signed()

    def _signed(self) -> list[Path]:
        """The folders of communities in which this home has signed."""
        try:
            found = list((self.home / "communities").iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        # A folder with a dot is being made, and may be gone at the next look.
        return [f for f in found if not f.name.startswith(".") and any(f.glob(_SIGNED))]

    def lost(self, known: Collection[str]) -> list[str]:
        """Display ids of joined communities without a log; `known` are full ids with one."""
        return sorted(self.joined() - {display_id(each) for each in known})

    def full_id(self, name: str) -> str | None:
        """The full id for a display id, read from the events signed last; None if unknown."""
        for file in sorted((self.home / "communities" / name).glob(_SIGNED)):
            try:
                signed = SigningMarker(file).read()
            except CommunityError:
                continue
            for event in signed:
                if display_id(event.community_id) == name:
                    return event.community_id
        return None

    @property
    def chosen(self) -> str | None:
        """The id of the current community, if one was chosen."""
        return _read_file(self.home / "communities" / _CURRENT)

    def choose(self, community_id: str) -> None:
        """Make a community the current one."""
        _write_file(self.home / "communities" / _CURRENT, community_id)

    def is_restored(self, community_id: str) -> bool:
        """Whether the folder was restored and no other member was reached since."""
        return RestoreNote(self._folder(community_id)).exists

    def has_left(self, community_id: str) -> bool:
        """Whether this home has left a community and not rejoined it."""
        return (self._folder(community_id) / _LEFT).exists()

    def leave(self, community_id: str) -> None:
        """Mark a community as left."""
        _write_file(self._folder(community_id) / _LEFT, "")

    def rejoin(self, community_id: str) -> None:
        """Remove the mark that `leave` set."""
        (self._folder(community_id) / _LEFT).unlink(missing_ok=True)

    def name(self, community_id: str) -> str | None:
        """This node's display name in a community, if one was chosen."""
        return _read_file(self._folder(community_id) / _NAME)

    def set_name(self, community_id: str, name: str) -> None:
        """Set this node's display name in a community."""
        _write_file(self._folder(community_id) / _NAME, name)

    def _folder(self, community_id: str) -> Path:
        """Takes a full id, or a display id that `joined` returned."""
        if formats.is_id(community_id):
            return community_folder(self.home, community_id)
        return self.home / "communities" / community_id


def _read_file(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(_LONGEST).decode() or None
    except (OSError, UnicodeDecodeError):
        return None


def _write_file(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_private(path, text.encode())
    except OSError as error:
        raise CommunityError(
            Code.INTERNAL_ERROR,
            f"the home cannot be written ({error.strerror})",
            where=str(path),
            mend="let this user write to it, and see that the disk has space",
        ) from error


_log = structlog.stdlib.get_logger(__name__)

WITNESSED: Final = "community.invite.witnessed"

_TOPICS: Final[Mapping[str, Callable[[Event], str]]] = {
    "community.member.joined": lambda _: "community.member.added",
    "community.member.revoked": lambda _: "community.member.revoked",
    "market.post.created": lambda _: "marketplace.post.created",
    "market.post.expired": lambda _: "marketplace.post.expired",
    "chat.message.sent": lambda event: f"chat.message.{event.data['recipient']}",
}
"""The topic of each event type: section 8 of the specification."""


_REMEMBERED: Final = 256
"""How many changes are remembered; a reader further behind learns only that there were some."""


class LogChanges:
    """Numbered changes of a log, which pages and programs of the owner can wait for.

    A change is a batch with newly accepted events. Numbers also rise across restarts.
    """

    def __init__(self, clock: Clock) -> None:
        self.number = int(clock.now() * 1000)
        self._latest: deque[frozenset[str]] = deque(maxlen=_REMEMBERED)
        self._changed = asyncio.Event()

    def note(self, news: LogUpdate) -> None:
        """Count a batch."""
        if news.accepted:
            self.number += 1
            self._latest.append(frozenset(event.event_type for event in news.accepted))
            self._changed.set()
            self._changed = asyncio.Event()

    async def wait(self, after: int, seconds: float) -> None:
        """Wait until there is a change after a number, at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while self.number == after:
                    await self._changed.wait()
        except TimeoutError:
            return

    def event_types(self, after: int) -> frozenset[str] | None:
        """The event types in the changes after a number; None if those are not remembered."""
        count = self.number - after
        if not 0 <= count <= len(self._latest):
            return None
        return frozenset[str]().union(*list(self._latest)[len(self._latest) - count :])


class HostedCommunity:
    """A community that this node is in or is about to join."""

    def __init__(self, log: EventLog, holdings: LogHoldings, key: SigningKey, clock: Clock) -> None:
        self.log = log
        self.holdings = holdings
        self.changes = LogChanges(clock)
        self._key = key
        self._clock = clock
        self._signed: tuple[CommunityState, Mapping[str, Any]] | None = None

    @property
    def community_id(self) -> str:
        """The full id of the community."""
        return self.log.community_id

    @property
    def state(self) -> CommunityState:
        """The folded state of the log."""
        return self.log.state

    @property
    def own_id(self) -> str:
        """The id of this node."""
        return self._key.id

    @property
    def is_member(self) -> bool:
        """Whether this node is a member."""
        return self.level_of(self._key.id) >= Level.MEMBER

    def level_of(self, node_id: str) -> Level:
        """The trust level of a node."""
        return self.state.level_of(node_id)

    def is_revoked(self, node_id: str) -> bool:
        """Whether a node was revoked."""
        return self.state.is_revoked(node_id)

    def requires_to(self, node_id: str) -> bool:
        """Whether a node has ever declared that its requests name their recipient."""
        return "to" in self.state.extensions_of(node_id)

    def is_invited(self, node_id: str) -> bool:
        """Whether there is an open invite for a node."""
        return bool(self.state.open_invites(node_id, self._clock.now()))

    async def witness(self, node_id: str) -> None:
        """Log that a node came here while its invite was open, so that it may join.

        Does nothing if no invite needs a witness or this node could not have given the invite.
        """
        roster, now = self.state.roster, self._clock.now()
        level = self.level_of(self._key.id)
        for event_id in self.state.open_invites(node_id, now):
            wanted = [
                each
                for each in roster.invites[event_id, node_id]
                if each.is_open and not each.is_redeemable and each.level <= level
            ]
            if wanted and level >= roster.least_inviter:
                data = {"invite_event_id": event_id, "invitee_node_id": node_id}
                try:
                    await self.log.append(WITNESSED, data)
                except CommunityError as error:
                    # A concurrent request has logged it already, or this node may not sign.
                    _log.info(
                        "the use of an invite could not be witnessed",
                        invitee=node_id,
                        why=str(error),
                    )

    def manifest(self) -> Mapping[str, Any] | None:
        """The signed community manifest; None where this node is not an anchor."""
        if self.level_of(self._key.id) < Level.ANCHOR:
            return None
        if self._signed is None or self._signed[0] is not self.state:
            derived = self.state.community_manifest()
            self._signed = self.state, sign_community(self._key, derived)
        return self._signed[1]

    def publish_to(self, topics: Topics) -> Callable[[], None]:
        """Tell topics of every event that comes to stand, until what is returned is called."""

        def publish(news: LogUpdate) -> None:
            self.changes.note(news)
            for event in news.accepted:
                topic = _TOPICS.get(event.event_type)
                if topic is not None:
                    topics.publish(topic(event), event.payload(), community=self.community_id)

        return self.log.subscribe(publish)
