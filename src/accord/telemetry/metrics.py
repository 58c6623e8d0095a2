"""Metrics: one table of all of them, and the families that are made from it.

A plane counts in plain numbers and shows them by `family` and `histogram`: a name that is not in
the table cannot be shown. Nothing here listens or knows a plane.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from accord.kernel.clock import Durations


class MetricKind(StrEnum):
    """What a metric's value does."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """One metric."""

    plane: str  # who shows it; it is there while that plane is up
    name: str  # as it is queried; of a histogram without `_bucket`, `_sum` and `_count`
    kind: MetricKind  # what its value does
    unit: str  # what is counted
    labels: tuple[str, ...]  # by what it is split
    meaning: str  # one sentence


_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

# fmt: off
_STATION: Final = (
    ("accord_build_info", _G, "1", ("version",), "The running version of Accord."),
    ("accord_uptime_seconds", _G, "seconds", (), "Time since the station started."),
    ("accord_plane_state", _G, "0 or 1", ("plane", "state"), "1 for the current state of a plane."),
    ("accord_plane_restarts_total", _C, "restarts", ("plane",),
     "Restarts of a plane."),
    ("accord_plane_parts", _G, "parts", ("plane", "state"),
     "Parts of a plane, such as bots: healthy ones, and those with a problem."),
    ("accord_scrape_failures_total", _C, "scrapes", ("plane",),
     "Times that the metrics of a plane could not be read and were left out."),
    ("accord_tasks", _G, "tasks", (), "Tasks on the station's loop, running or waiting."),
)
_PROCESS: Final = (
    ("process_virtual_memory_bytes", _G, "bytes", (), "Virtual memory size."),
    ("process_resident_memory_bytes", _G, "bytes", (), "Resident memory size."),
    ("process_start_time_seconds", _G, "seconds since 1970", (), "When the process started."),
    ("process_cpu_seconds_total", _C, "seconds", (), "CPU time, user and system."),
    ("process_open_fds", _G, "files", (), "Open files and sockets."),
    ("process_max_fds", _G, "files", (), "The limit of open files and sockets."),
)
_STORES: Final = (
    ("accord_store_commit_seconds", _H, "seconds", ("store",),
     "Duration of a transaction, until it is on disk."),
    ("accord_store_units_total", _C, "units of work", ("store",),
     "Units of work that were committed; many share a commit."),
    ("accord_store_failures_total", _C, "units of work", ("store",),
     "Units of work that the store refused, for example because the disk is full."),
    ("accord_store_size_bytes", _G, "bytes", ("store",),
     "Size of the files of a SQLite store."),
)
_COMMUNITY: Final = (
    ("accord_bus_answers_total", _C, "requests", ("capability",), "Requests that were answered."),
    ("accord_bus_refusals_total", _C, "requests", ("check", "code"), "Requests that were refused."),
    ("accord_bus_in_hand", _G, "calls", (), "Calls that are being served."),
    ("accord_community_members", _G, "members", ("community",), "Members of the community."),
    ("accord_community_head_lamport", _G, "1", ("community",),
     "The greatest lamport of the log; equal on nodes that are in sync."),
    ("accord_fold_events_total", _C, "events", ("community",),
     "Events that were folded, including those at startup."),
    ("accord_fold_seconds_total", _C, "seconds", ("community",), "Time spent folding."),
    ("accord_log_refused_events_total", _C, "events", ("community", "reason"),
     "Events not accepted for now: author over `quota`, too little `disk`, dated too `early`."),
    ("accord_log_quota_used_ratio", _G, "1", ("community",),
     "Share of today's quota that the most active author has used."),
    ("accord_sync_meetings_total", _C, "meetings", ("community", "outcome"),
     "Attempts to sync with a node, by outcome: `met` or `failed`."),
    ("accord_sync_received_events_total", _C, "events", ("community",),
     "New events that were received by sync."),
    ("accord_sync_peers", _G, "nodes", ("community", "state"),
     "Members contacted since the start, by whether the last attempt reached them."),
    ("accord_sync_met_timestamp_seconds", _G, "seconds since 1970", ("community", "peer"),
     "Time of the last sync with a member, for the latest 64 members of a community."),
    ("accord_sync_behind_events", _G, "events", ("community", "peer"),
     "Events that this node lacked at its last sync with that member."),
    ("accord_route_calls_total", _C, "calls", ("capability", "outcome"),
     "Routed calls of own clients: served here (`local`), elsewhere (`remote`), or `failed`."),
    ("accord_route_retries_total", _C, "calls", ("capability",),
     "Attempts on another node after one had failed."),
    ("accord_route_hedges_total", _C, "calls", (),
     "Short calls that were sent to a second node because the first took long."),
    ("accord_route_running", _G, "calls", (), "Routed calls in progress."),
    ("accord_route_misconduct_total", _C, "answers", ("misconduct",),
     "Bad answers of other nodes: `lie`, `garbage`, `endless` or `slow`."),
    ("accord_route_barred_nodes", _G, "nodes", ("misconduct",),
     "Nodes that are left alone for a time because of a bad answer."),
    ("accord_gossip_choices_total", _C, "syncs", ("community", "reason"),
     "Syncs that were started, by the reason for which the rounds chose the peer."),
    ("accord_gossip_links", _G, "links", (), "Connections to other nodes that are kept open."),
    ("accord_tunnels", _G, "tunnels", ("side",),
     "Tunnels: `held` to anchors that relay for this node, `carried` for members."),
    ("accord_tunnel_streams", _G, "connections", (),
     "Connections that this node carries between members at the moment."),
)
_MODELS: Final = (
    ("accord_door_requests_total", _C, "requests", ("door", "outcome"),
     "Requests to the local APIs: `admitted`, `refused` or `limited` by their token or key."),
    ("accord_llm_running", _G, "generations", (), "Generations in progress."),
    ("accord_llm_waiting", _G, "generations", (), "Generations waiting to start."),
    ("accord_llm_generations_total", _C, "generations", ("model", "outcome"),
     "Finished generations, by stop reason or `failed`."),
    ("accord_llm_tokens_total", _C, "tokens", ("model", "direction"),
     "Tokens that were read (`in`) and generated (`out`)."),
    ("accord_llm_seconds_total", _C, "seconds", ("model",),
     "Time from call to last token, including the wait to start."),
)
_RELAY: Final = (
    ("accord_relay_events_total", _C, "events", ("outcome",),
     "Events received from platforms: accepted, accepted without a recipient, or duplicates."),
    ("accord_relay_dropped_total", _C, "events", ("rule",),
     "Events that reached no agent, by the rule that refused them."),
    ("accord_relay_deliveries_total", _C, "rows", (),
     "Rows that were written to a gateway's socket."),
    ("accord_relay_acks_total", _C, "rows", (), "Rows that a gateway acknowledged."),
    ("accord_relay_dead_letters_total", _C, "rows", (), "Rows that became dead letters."),
    ("accord_relay_parked", _G, "events", (),
     "Events that wait until a platform says who can see their chat."),
    ("accord_relay_parked_oldest_seconds", _G, "seconds", (),
     "How long the oldest of them has waited."),
    ("accord_relay_outbox_waiting", _G, "actions", (),
     "Actions of agents that are stored and not done yet."),
    ("accord_relay_outbox_oldest_seconds", _G, "seconds", (),
     "How long the oldest of them has waited."),
    ("accord_relay_outbox_dead", _G, "actions", (),
     "Actions that were refused for good, expired, or whose outcome is unknown."),
    ("accord_gateway_outbox_waiting", _G, "actions", (),
     "Actions that the station's own agent has asked for and that have not ended."),
    ("accord_gateway_outbox_oldest_seconds", _G, "seconds", (),
     "How long the oldest of them has waited."),
    ("accord_relay_wakes_total", _C, "wakes", ("outcome",),
     "Wake pokes, by outcome."),
    ("accord_relay_refused_connects_total", _C, "sockets", ("reason",),
     "Sockets that were refused, by the reason given at the close."),
    ("accord_relay_buffered", _G, "rows", (),
     "Rows that wait for gateways, as last counted by the process that does maintenance."),
    ("accord_relay_oldest_unacknowledged_seconds", _G, "seconds", (),
     "How long the oldest of them had waited then; 0 when none did."),
    ("accord_relay_sockets", _G, "sockets", ("state",), "Gateway sockets, by state."),
    ("accord_relay_ingest_seconds", _H, "seconds", (),
     "Time from a platform's call until its event is on disk."),
    ("accord_relay_delivery_seconds", _H, "seconds", (),
     "Time from storing an event to its acknowledgement."),
    ("accord_relay_total", _C, "times", ("what",),
     "Other actions and refusals of the connector, by kind."),
)
_AUTHORITY: Final = (
    ("accord_authority_refused_total", _C, "requests", ("code",),
     "Requests that were refused over HTTP."),
    ("accord_authority_connections", _G, "connections", (), "Connections of sessions to NATS."),
    ("accord_authority_plans", _G, "plans", ("state",), "Plans, by state."),
    ("accord_authority_offers", _G, "offers", ("state",),
     "Offers: live, stale within their grace, or expired."),
    ("accord_authority_deployments", _G, "deployments", ("state",),
     "Deployments, by state: applied (`current`), `pending`, `failed`, `new` or `disabled`."),
    ("accord_nats_up", _G, "0 or 1", (),
     "1 while the authority is connected to its NATS server, built-in or your own."),
    ("accord_nats_restarts_total", _C, "restarts", (),
     "Restarts of the built-in NATS server; 0 with your own."),
)
_PIPELINE: Final = (
    ("accord_pipeline_exported_records_total", _C, "records", ("stream",),
     "Records that landed since the station started."),
    ("accord_pipeline_waiting_records", _G, "records", ("stream",),
     "Records that were still to land when the last export ended."),
    ("accord_pipeline_export_failures_total", _C, "exports", (), "Exports that failed."),
    ("accord_pipeline_last_export_timestamp_seconds", _G, "seconds since 1970", (),
     "When the last export succeeded; 0 before the first."),
    ("accord_pipeline_gold_timestamp_seconds", _G, "seconds since 1970", (),
     "When gold was last published; absent before the first time."),
    ("accord_pipeline_records", _G, "records", ("stream", "fate"),
     "All records that ever landed, by outcome as of gold: accepted, quarantined, duplicates."),
    ("accord_pipeline_spoilt_segments", _G, "segments", (),
     "Segments that the last run left out because their content does not match their name."),
    ("accord_pipeline_unexpected_rows", _G, "rows", ("table", "act"),
     "Rows of published tables that break an expectation; one where it could not be checked."),
    ("accord_pipeline_run_seconds", _G, "seconds", ("stage",),
     "How long each stage of the run took that published last."),
)
# fmt: on

METRICS: Final = tuple(
    MetricDefinition(plane, *each)
    for plane, group in (
        ("station", _STATION),
        ("process", _PROCESS),
        ("stores", _STORES),
        ("community", _COMMUNITY),
        ("models", _MODELS),
        ("relay", _RELAY),
        ("authority", _AUTHORITY),
        ("pipeline", _PIPELINE),
    )
    for each in group
)
"""Every metric, by plane."""


Labels = TypeVar("Labels", bound=tuple[str, ...])

_NAMED: Final = {each.name: each for each in METRICS}


def family(name: str, values: float | Mapping[Labels, float]) -> Metric:
    """A metric with its values: one, or one for each choice of its labels.

    Raises:
        KeyError: The table has no such metric.
    """
    measure = _NAMED[name]
    kind = CounterMetricFamily if measure.kind is MetricKind.COUNTER else GaugeMetricFamily
    made = kind(name, measure.meaning, labels=measure.labels)
    if isinstance(values, Mapping):
        for labels, value in sorted(values.items()):
            made.add_metric(labels, value)
    else:
        made.add_metric((), values)
    return made


def histogram(name: str, values: Mapping[Labels, Durations]) -> Metric:
    """A metric of durations, by the choices of its labels.

    Raises:
        KeyError: The table has no such metric.
    """
    measure = _NAMED[name]
    made = HistogramMetricFamily(name, measure.meaning, labels=measure.labels)
    for labels, durations in sorted(values.items()):
        borders = [
            ("+Inf" if border == float("inf") else str(border), count)
            for border, count in durations.up_to()
        ]
        made.add_metric(labels, borders, durations.total)
    return made
