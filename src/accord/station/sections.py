"""The sections of the settings: names, types, defaults and descriptions."""

import ipaddress
import re
from typing import Annotated, Final, Literal

from pydantic import Field, SecretStr, field_validator

from accord.capabilities.settings import CORPUS_PATTERN
from accord.kernel.section import Section
from accord.relay.platforms.settings import (
    DiscordSettings,
    MatrixSettings,
    SmsSettings,
    TelegramSettings,
    WebhookSettings,
    WecomSettings,
)


class StationSettings(Section):
    """`[station]`: where the station listens and how it stops."""

    name: Annotated[
        str, Field(min_length=1, max_length=100, description="the station's display name")
    ] = "station"
    host: Annotated[str, Field(min_length=1, description="the address to listen on")] = "127.0.0.1"
    port: Annotated[
        int, Field(ge=0, le=65535, description="the port to listen on; 0 takes a free one")
    ] = 7070
    names: Annotated[
        tuple[str, ...],
        Field(
            max_length=64,
            description="further names under which `/`, `/readyz`, `/metrics` and the node's "
            "routes answer, beside addresses and `localhost`",
            examples=['["station.example.org"]'],
        ),
    ] = ()
    drain_seconds: Annotated[
        float,
        Field(ge=0, le=3600, description="how long the planes may take to finish when it stops"),
    ] = 10.0
    notice_seconds: Annotated[
        float,
        Field(
            ge=0,
            le=600,
            description="how long it goes on serving after `/readyz` said that it will stop, so "
            "that a proxy notices; more than the proxy's interval",
        ),
    ] = 0.0


class LogSettings(Section):
    """`[log]`: what is logged, how, and where to."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Field(description="the least level that is logged"),
    ] = "info"
    format: Annotated[
        Literal["auto", "console", "json"],
        Field(
            description="on stderr; `auto` is `json` where stderr is no terminal, and on one "
            "`console`, of which `accord up` shows warnings and errors above its status line"
        ),
    ] = "auto"
    file: Annotated[
        bool, Field(description="also write JSON lines to `logs/station.log` in the home, rotated")
    ] = True


class StoreSettings(Section):
    """`[store]`: where records are kept."""

    url: Annotated[
        SecretStr,
        Field(
            description="a `postgresql://` URL; empty keeps SQLite files in `stores/` in the home",
            examples=["postgresql://user@host/name"],
        ),
    ] = SecretStr("")

    @field_validator("url")
    @classmethod
    def _engine_is_known(cls, url: SecretStr) -> SecretStr:
        if url.get_secret_value() and not url.get_secret_value().startswith("postgresql://"):
            raise ValueError("should be empty or start with postgresql://")
        return url


class CommunitySettings(Section):
    """`[community]`: what the node belongs to, its bus, and how it finds other nodes."""

    found: Annotated[
        str,
        Field(
            max_length=100,
            description=(
                "name of the community that the first start founds, if the node is in none; empty"
                " for none"
            ),
        ),
    ] = "Home"
    join: Annotated[
        str,
        Field(description="an invite by which the first start joins instead"),
    ] = ""
    host: Annotated[str, Field(min_length=1, description="the address to listen on for nodes")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int,
        Field(ge=0, le=65535, description="the port to listen on for nodes; 0 takes a free one"),
    ] = 7080
    advertise: Annotated[
        tuple[str, ...],
        Field(max_length=8, description="the hosts under which others reach it; empty finds one"),
    ] = ()
    peers: Annotated[
        tuple[str, ...],
        Field(max_length=256, description="nodes to sync with, such as `https://192.168.1.4:7080`"),
    ] = ()
    discovery: Annotated[
        bool, Field(description="find nodes by multicast DNS, unless it listens on loopback only")
    ] = True
    plain_http: Annotated[
        bool, Field(description="dial other machines without TLS where a peer says `http`")
    ] = False
    require_to: Annotated[
        bool, Field(description="refuse calls that do not say which node they are for")
    ] = False
    legacy: Annotated[
        Literal["off", "loopback", "anywhere"],
        Field(description="address ranges from which unsigned calls are accepted; best left empty"),
    ] = "off"
    sync_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=3600,
            description="about how long it waits between two rounds of syncs; news goes at once",
        ),
    ] = 15.0
    gossip_fanout: Annotated[
        int,
        Field(
            ge=1,
            le=32,
            description="how many of the nodes that answer a round syncs with by chance",
        ),
    ] = 3
    max_links: Annotated[
        int, Field(ge=1, le=1024, description="how many connections to other nodes stay open")
    ] = 64
    relay: Annotated[
        bool,
        Field(
            description=(
                "where this station is an anchor that others can dial: carry connections to "
                "members that nobody can dial, which hold a tunnel to it"
            )
        ),
    ] = False
    relay_members: Annotated[
        int, Field(ge=1, le=10_000, description="how many members may hold a tunnel to it")
    ] = 256
    relay_streams: Annotated[
        int,
        Field(ge=1, le=256, description="how many connections it carries to or from one member"),
    ] = 64
    relay_bytes_per_second: Annotated[
        int,
        Field(ge=64 * 1024, description="how many bytes in a second it carries for one caller"),
    ] = 8 * 1024 * 1024
    relayed: Annotated[
        bool,
        Field(
            description=(
                "hold tunnels to anchors that relay, so that members reach this station where its "
                "port cannot be dialled"
            )
        ),
    ] = True
    author_bytes_per_day: Annotated[
        int,
        Field(
            ge=0,
            description=(
                "how many bytes of events its log accepts from one author in a day; the rest is "
                "accepted on the next; 0 for no limit"
            ),
        ),
    ] = 64 * 1024 * 1024
    min_free_bytes: Annotated[
        int,
        Field(ge=0, description="how much disk space must stay free for its log to accept content"),
    ] = 256 * 1024 * 1024
    archive_days: Annotated[
        int,
        Field(
            ge=0,
            description=(
                "for how many days this node keeps the text of its own messages after the "
                "community's log has dropped it; 0 for ever"
            ),
        ),
    ] = 0


class RoutingSection(Section):
    """`[routing]`: which nodes of a community serve the calls of this station's own programs."""

    enabled: Annotated[
        bool,
        Field(description="let other nodes serve calls, which then see what was asked"),
    ] = True
    local: Annotated[
        Literal["first", "best"],
        Field(
            description="`first`: this node serves what it can; `best`: the node that is expected"
            " to answer soonest does"
        ),
    ] = "first"
    least_level: Annotated[
        Literal["member", "trusted", "anchor"],
        Field(description="the lowest trust level of a node that is given calls"),
    ] = "member"
    attempts: Annotated[
        int, Field(ge=1, le=16, description="how many nodes are tried for one call")
    ] = 3
    seconds: Annotated[
        float, Field(gt=0, le=3600, description="how long a call may take, with all attempts")
    ] = 300.0
    first_seconds: Annotated[
        float,
        Field(gt=0, le=3600, description="how long a node may take until its answer or first word"),
    ] = 40.0
    silence_seconds: Annotated[
        float, Field(gt=0, le=3600, description="how long a node's stream may be silent")
    ] = 30.0
    answer_seconds: Annotated[
        float,
        Field(gt=0, le=3600, description="how long a whole generated answer may take to come"),
    ] = 120.0
    look_seconds: Annotated[
        float,
        Field(
            ge=0, le=60, description="how long a call waits for nodes that were not heard of lately"
        ),
    ] = 2.0
    hedge_seconds: Annotated[
        float,
        Field(
            ge=0,
            le=60,
            description="after how long a short call is sent to a second node, too; 0 for never",
        ),
    ] = 0.5
    max_stream_bytes: Annotated[
        int, Field(ge=1024, le=2**30, description="the longest answer of another node")
    ] = 8 * 1024 * 1024
    max_frames: Annotated[
        int, Field(ge=16, le=2**24, description="the most frames of another node's stream")
    ] = 65_536
    max_concurrent: Annotated[
        int, Field(ge=1, le=4096, description="how many calls are routed at a time")
    ] = 64
    max_links: Annotated[
        int, Field(ge=1, le=4096, description="to how many idle nodes connections stay open")
    ] = 256
    max_barred: Annotated[
        int, Field(ge=1, le=65536, description="how many nodes with bad answers are remembered")
    ] = 1024


class RelaySettings(Section):
    """`[relay]`: the connector, its web chat, and how gateways and platforms reach it."""

    enabled: Annotated[bool, Field(description="run a connector in this station")] = True
    webchat: Annotated[bool, Field(description="serve the built-in web chat")] = True
    url: Annotated[
        str,
        Field(
            pattern=r"^(https?://.*)?$",
            description="where people reach it, such as `https://chat.example`; needed behind a "
            "proxy that ends TLS",
        ),
    ] = ""
    listen: Annotated[
        str,
        Field(
            description="where else gateways and platforms reach it, such as `0.0.0.0:7090`; "
            "empty for the station's own address only"
        ),
    ] = ""
    certificate: Annotated[
        str, Field(description="a PEM file with certificate and key, to listen there by TLS")
    ] = ""
    proxies: Annotated[
        tuple[str, ...],
        Field(
            max_length=64,
            description="address ranges of trusted proxies, whose `X-Forwarded-For` is used",
        ),
    ] = ()
    redis: Annotated[
        SecretStr,
        Field(
            description="a `redis://` URL, for connectors that share a PostgreSQL store; "
            "empty for one alone",
            examples=["redis://host:6379/0"],
        ),
    ] = SecretStr("")
    managed_keys: Annotated[
        str,
        Field(
            description="a JWKS or PEM file with the keys that sign managed tokens; empty for none"
        ),
    ] = ""
    managed_issuer: Annotated[
        str, Field(description="the `iss` that managed tokens must carry; empty accepts any")
    ] = ""
    wake_http: Annotated[bool, Field(description="let wake URLs be plain `http`")] = False
    wake_ports: Annotated[
        tuple[Annotated[int, Field(ge=1, le=65535)], ...],
        Field(max_length=64, description="ports that wake URLs may name besides 443"),
    ] = ()
    wake_networks: Annotated[
        tuple[str, ...],
        Field(max_length=64, description="private ranges that wake URLs may lead to"),
    ] = ()

    telegram: Annotated[
        tuple[TelegramSettings, ...], Field(description="bots on Telegram, a table each")
    ] = ()
    discord: Annotated[
        tuple[DiscordSettings, ...], Field(description="bots on Discord, a table each")
    ] = ()
    matrix: Annotated[
        tuple[MatrixSettings, ...], Field(description="bots on Matrix, a table each")
    ] = ()
    sms: Annotated[
        tuple[SmsSettings, ...], Field(description="phone numbers at Twilio, a table each")
    ] = ()
    wecom: Annotated[
        tuple[WecomSettings, ...], Field(description="applications in WeCom, a table each")
    ] = ()
    webhook: Annotated[
        tuple[WebhookSettings, ...],
        Field(description="programs that speak by signed webhooks, a table each"),
    ] = ()

    @field_validator("listen")
    @classmethod
    def _is_a_place(cls, listen: str) -> str:
        if listen:
            split_listen(listen)
        return listen

    @field_validator("redis")
    @classmethod
    def _bus_is_known(cls, url: SecretStr) -> SecretStr:
        text = url.get_secret_value()
        if text and not text.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("should be empty or start with redis://, rediss:// or unix://")
        return url

    @field_validator("wake_networks", "proxies")
    @classmethod
    def _ranges_are_ranges(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            ipaddress.ip_network(network)
        return networks


class ConsoleSettings(Section):
    """`[console]`: the pages in a browser, and how long somebody stays logged in."""

    enabled: Annotated[bool, Field(description="serve the console at `/console`")] = True
    url: Annotated[
        str,
        Field(
            pattern=r"^(https?://[^/?#@]+)?$",
            description="where people reach the station from elsewhere, such as "
            "`https://station.example`; empty answers this machine alone",
        ),
    ] = ""
    session_hours: Annotated[
        float, Field(gt=0, le=8760, description="after how long one has to log in again")
    ] = 12.0
    idle_hours: Annotated[
        float,
        Field(
            gt=0, le=8760, description="after how long without a request one has to log in again"
        ),
    ] = 2.0
    language: Annotated[
        Literal["auto", "en", "de"],
        Field(
            description="the language of the pages: `auto` takes the browser's, as far as there is "
            "a catalogue of it; somebody can choose another in their browser"
        ),
    ] = "auto"


class ConciergeSettings(Section):
    """`[concierge]`: the agent that answers in chats from what the community knows."""

    enabled: Annotated[bool, Field(description="run it, beside the connector of this station")] = (
        True
    )
    corpus: Annotated[
        str,
        Field(
            pattern=f"^({CORPUS_PATTERN})?$",
            description="answer from this corpus only; empty for all of the community's",
        ),
    ] = ""
    model: Annotated[
        str, Field(max_length=128, description="the language model; empty for the node's first one")
    ] = ""
    community: Annotated[
        str,
        Field(
            pattern=r"^(ed25519:[A-Za-z0-9_-]{43})?$",
            description="whose documents and market; empty for the first community",
        ),
    ] = ""
    space: Annotated[
        str,
        Field(
            min_length=1,
            max_length=40,
            description="the space of the web chat with its lobby; whoever joins may talk to it",
        ),
    ] = "lobby"


class PipelineSettings(Section):
    """`[pipeline]`: how what happened is landed for the pipeline, and for how long it is kept."""

    export_seconds: Annotated[
        float,
        Field(
            ge=0, le=86400, description="how often the station exports its journals; 0 for never"
        ),
    ] = 60.0
    landing: Annotated[
        str,
        Field(
            description="where segments land: a folder, or a URL that fsspec knows; "
            "empty for `pipeline/landing` in the home"
        ),
    ] = ""
    retain_days: Annotated[
        int,
        Field(
            ge=0,
            le=36500,
            description="how long journals keep what has landed, the relay's no longer than "
            "`[relay] journal_days`; 0 for ever",
        ),
    ] = 0
    segment_days: Annotated[
        int, Field(ge=0, le=36500, description="how long segments are kept; 0 for ever")
    ] = 0
    lineage_url: Annotated[
        str,
        Field(
            max_length=2048,
            description="where the OpenLineage events of runs are posted; empty for nowhere",
        ),
    ] = ""
    lineage_token: Annotated[
        SecretStr, Field(description="the bearer token that goes with these events")
    ] = SecretStr("")
    lineage_http: Annotated[bool, Field(description="let that URL be plain `http`")] = False
    lineage_ports: Annotated[
        tuple[Annotated[int, Field(ge=1, le=65535)], ...],
        Field(max_length=64, description="ports that it may name besides 443"),
    ] = ()
    lineage_networks: Annotated[
        tuple[str, ...],
        Field(max_length=64, description="private ranges that it may lead to"),
    ] = ()

    @field_validator("lineage_networks")
    @classmethod
    def _ranges_are_ranges(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            ipaddress.ip_network(network)
        return networks


class MetricsSettings(Section):
    """`[metrics]`: who may read the figures at `/metrics`, and their history."""

    token: Annotated[
        SecretStr,
        Field(
            description=(
                "the token that a reader sends as `Authorization: Bearer`; empty lets only "
                "programs on this machine read them, and none behind a proxy"
            )
        ),
    ] = SecretStr("")
    history_seconds: Annotated[
        float,
        Field(
            ge=0,
            le=3600,
            description=(
                "how often a sample of the figures is stored for the plots of the console, which "
                "show the last hour and the last day; 0 stores none"
            ),
        ),
    ] = 60.0


def split_listen(listen: str) -> tuple[str, int]:
    """Split `0.0.0.0:7090` or `[::]:7090` into host and port, or raise `ValueError`."""
    host, _, port = listen.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_port = port.isascii() and port.isdecimal() and len(port) < 6 and int(port) < 65536
    if not host or "[" in host or not is_port:
        raise ValueError("should be a host and a port, such as 0.0.0.0:7090")
    return host, int(port)


_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,100}", re.ASCII)


class TelemetrySettings(Section):
    """`[telemetry]`: where traces go, and how many of them."""

    traces: Annotated[
        str,
        Field(
            pattern=r"^(https?://[^\s/?#@]+(/[^\s?#]*)?)?$",
            description="the OTLP/HTTP collector that spans are sent to, such as "
            "`http://127.0.0.1:4318`; empty for what `OTEL_EXPORTER_OTLP_ENDPOINT` says, else none",
            examples=["http://127.0.0.1:4318"],
        ),
    ] = ""
    headers: Annotated[
        SecretStr,
        Field(
            description=(
                "headers for the collector, such as `authorization=Bearer …`, separated by commas"
            ),
            examples=["authorization=Bearer …"],
        ),
    ] = SecretStr("")
    sample: Annotated[
        float,
        Field(
            ge=0, le=1, description="the fraction of traces that is recorded, chosen by their ids"
        ),
    ] = 1.0

    @field_validator("headers")
    @classmethod
    def _headers_are_pairs(cls, headers: SecretStr) -> SecretStr:
        parse_headers(headers.get_secret_value())
        return headers


def parse_headers(headers: str) -> dict[str, str]:
    """Parse `name=value,name=value` into HTTP headers, or raise `ValueError`."""
    found = {}
    for each in filter(None, map(str.strip, headers.split(","))):
        name, _, value = (part.strip() for part in each.partition("="))
        if not _HEADER.fullmatch(name) or not value.isprintable() or not value:
            raise ValueError("should be pairs such as authorization=Bearer …, separated by commas")
        found[name] = value
    return found
