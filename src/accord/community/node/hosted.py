"""One community on this node: its log, and what bus and sync ask about it.

Owns the answers to who may do what, read from the state of the log, and telling topics what has
happened. It decides nothing that the fold has not decided.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from accord.community.bus import Topics
from accord.community.envelope import Event
from accord.community.envelope.manifests import sign_community
from accord.community.envelope.names import Level
from accord.community.fold import State, views
from accord.community.log import Log, News
from accord.community.sync import Holdings
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey

_TOPICS: Final[Mapping[str, Callable[[Event], str]]] = {
    "community.member.joined": lambda _: "community.member.added",
    "community.member.revoked": lambda _: "community.member.revoked",
    "market.post.created": lambda _: "marketplace.post.created",
    "market.post.expired": lambda _: "marketplace.post.expired",
    "chat.message.sent": lambda event: f"chat.message.{event.data['recipient']}",
}
"""The topic on which an event of a type is told: section 8 of the specification."""


class Hosted:
    """A community that this node belongs to, or is about to.

    Attributes:
        log: Its log.
        holdings: What the log holds.
    """

    def __init__(self, log: Log, holdings: Holdings, key: SigningKey, clock: Clock) -> None:
        self.log = log
        self.holdings = holdings
        self._key = key
        self._clock = clock
        self._signed: tuple[State, Mapping[str, Any]] | None = None

    @property
    def community_id(self) -> str:
        """Which community it is."""
        return self.log.community_id

    @property
    def state(self) -> State:
        """What the log comes to."""
        return self.log.state

    @property
    def own_id(self) -> str:
        """Which node this is."""
        return self._key.id

    @property
    def is_member(self) -> bool:
        """Whether this node belongs to it."""
        return self.level_of(self._key.id) >= Level.MEMBER

    def level_of(self, node_id: str) -> Level:
        """How far the community trusts a node."""
        return views.level_of(self.state, node_id)

    def is_revoked(self, node_id: str) -> bool:
        """Whether the community revoked a node."""
        return views.is_revoked(self.state, node_id)

    def requires_to(self, node_id: str) -> bool:
        """Whether a node has ever declared that it names recipients."""
        return "to" in views.extensions_of(self.state, node_id)

    def is_invited(self, node_id: str) -> bool:
        """Whether an invite for a node stands."""
        return bool(views.open_invites(self.state, node_id, self._clock.now()))

    def manifest(self) -> Mapping[str, Any] | None:
        """The community's manifest, which only an anchor may sign; None on other nodes."""
        if self.level_of(self._key.id) < Level.ANCHOR:
            return None
        if self._signed is None or self._signed[0] is not self.state:
            derived = views.community_manifest(self.state)
            self._signed = self.state, sign_community(self._key, derived)
        return self._signed[1]

    def tell(self, topics: Topics) -> Callable[[], None]:
        """Tell topics of every event that comes to stand, until what is returned is called."""

        def told(news: News) -> None:
            for event in news.accepted:
                topic = _TOPICS.get(event.event_type)
                if topic is not None:
                    topics.publish(topic(event), event.payload(), community=self.community_id)

        return self.log.subscribe(told)
