"""Prometheus metrics of a node's communities."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from accord.community.communities import HostedCommunity
from accord.community.peers import PeerBook
from accord.community.quota import DISK, EARLY, QUOTA
from accord.community.sync import SyncResult
from accord.telemetry.metrics import family

MOST_PEERS: Final = 64
"""How many members of a community are shown one by one."""


class SyncCounters:
    """Sync results since the start."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.received: Counter[tuple[str]] = Counter()
        self._behind: dict[tuple[str, str], int] = {}

    def met(self, community_id: str, node_id: str, met: SyncResult) -> None:
        """Count a successful sync."""
        self.outcomes[community_id, "met"] += 1
        self.received[(community_id,)] += met.received
        self._behind[community_id, node_id] = met.received

    def failed(self, community_id: str) -> None:
        """Count a failed sync."""
        self.outcomes[community_id, "failed"] += 1

    def behind(self, community_id: str, node_id: str) -> int:
        """How many events the last sync with a node brought."""
        return self._behind.get((community_id, node_id), 0)


def node_metrics(
    communities: Iterable[HostedCommunity], book: PeerBook, syncs: SyncCounters
) -> Iterator[Metric]:
    """All metric families."""
    members, lamports, folded, seconds = {}, {}, {}, {}
    peers: Counter[tuple[str, str]] = Counter()
    met, behind = {}, {}
    refused: Counter[tuple[str, str]] = Counter()
    shares = {}
    for each in communities:
        community = each.community_id
        members[(community,)] = float(len(each.state.roster.members))
        lamports[(community,)] = float(each.log.head_lamport)
        events, folding = each.log.folded
        folded[(community,)], seconds[(community,)] = float(events), folding
        for reason in (QUOTA, DISK, EARLY):
            refused[community, reason] = each.log.quota.refused[reason]
        shares[(community,)] = each.log.quota.largest_share
        known = [peer for peer in book.peers(community) if peer.is_member]
        for state in ("reached", "lost"):
            peers[community, state] = 0
        for peer in known:
            peers[community, "lost" if peer.failures else "reached"] += 1
        for peer in sorted(known, key=lambda peer: -peer.seen)[:MOST_PEERS]:
            met[community, peer.node_id] = peer.seen
            behind[community, peer.node_id] = float(syncs.behind(community, peer.node_id))
    yield family("accord_community_members", members)
    yield family("accord_community_head_lamport", lamports)
    yield family("accord_fold_events_total", folded)
    yield family("accord_fold_seconds_total", seconds)
    yield family("accord_log_refused_events_total", refused)
    yield family("accord_log_quota_used_ratio", shares)
    yield family("accord_sync_meetings_total", syncs.outcomes)
    yield family("accord_sync_received_events_total", syncs.received)
    yield family("accord_sync_peers", peers)
    yield family("accord_sync_met_timestamp_seconds", met)
    yield family("accord_sync_behind_events", behind)
