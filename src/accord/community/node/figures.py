"""What a node has to tell of its communities, as figures for Prometheus.

Owns the counts of meetings. Only members are shown, by their ids, and of very many only those that
were met last: nobody can fill a page of figures by joining.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from accord.community.discovery import PeerBook
from accord.community.node.hosted import Hosted
from accord.community.sync import Met
from accord.metering import family

MOST_PEERS: Final = 64
"""How many members of a community are shown one by one."""


class Meetings:
    """How meetings went since the start."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.received: Counter[tuple[str]] = Counter()
        self._behind: dict[tuple[str, str], int] = {}

    def met(self, community_id: str, node_id: str, met: Met) -> None:
        """A node was met."""
        self.outcomes[community_id, "met"] += 1
        self.received[(community_id,)] += met.received
        self._behind[community_id, node_id] = met.received

    def failed(self, community_id: str) -> None:
        """A node could not be met."""
        self.outcomes[community_id, "failed"] += 1

    def behind(self, community_id: str, node_id: str) -> int:
        """How many events were lacking here when a node was last met."""
        return self._behind.get((community_id, node_id), 0)


def node_figures(
    communities: Iterable[Hosted], book: PeerBook, meetings: Meetings
) -> Iterator[Metric]:
    """Read everything."""
    members, lamports, folded, seconds = {}, {}, {}, {}
    peers: Counter[tuple[str, str]] = Counter()
    met, behind = {}, {}
    for each in communities:
        community = each.community_id
        members[(community,)] = float(len(each.state.roster.members))
        lamports[(community,)] = float(each.log.head_lamport)
        events, folding = each.log.folded
        folded[(community,)], seconds[(community,)] = float(events), folding
        known = [peer for peer in book.peers(community) if peer.is_member]
        for state in ("reached", "lost"):
            peers[community, state] = 0
        for peer in known:
            peers[community, "lost" if peer.failures else "reached"] += 1
        for peer in sorted(known, key=lambda peer: -peer.seen)[:MOST_PEERS]:
            met[community, peer.node_id] = peer.seen
            behind[community, peer.node_id] = float(meetings.behind(community, peer.node_id))
    yield family("accord_community_members", members)
    yield family("accord_community_head_lamport", lamports)
    yield family("accord_fold_events_total", folded)
    yield family("accord_fold_seconds_total", seconds)
    yield family("accord_sync_meetings_total", meetings.outcomes)
    yield family("accord_sync_received_events_total", meetings.received)
    yield family("accord_sync_peers", peers)
    yield family("accord_sync_met_timestamp_seconds", met)
    yield family("accord_sync_behind_events", behind)
