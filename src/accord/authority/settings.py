"""`[authority]`: the settings of the authority."""

import ipaddress
from typing import Annotated, Final

from pydantic import Field, field_validator

from accord.kernel.section import Section

_MOST_MEGABYTES: Final = 1 << 30


class AuthoritySettings(Section):
    """`[authority]`: contracts, who may what, and the NATS system that it rules."""

    enabled: Annotated[bool, Field(description="run an authority in this station")] = True
    url: Annotated[
        str,
        Field(
            pattern=r"^(https?://[^/?#]+/?)?$",
            description="where sessions and people reach it, such as `https://authority.example`; "
            "needed behind a proxy that ends TLS",
        ),
    ] = ""
    proxies: Annotated[
        tuple[str, ...],
        Field(
            max_length=64,
            description="address ranges of trusted proxies, whose `X-Forwarded-For` is used",
        ),
    ] = ()
    nats_host: Annotated[
        str, Field(min_length=1, description="the address that its own NATS server listens on")
    ] = "127.0.0.1"
    nats_port: Annotated[
        int,
        Field(
            ge=0, le=65535, description="the port of that server; 0 takes a free one and keeps it"
        ),
    ] = 0
    nats_websocket_port: Annotated[
        int,
        Field(
            ge=-1,
            le=65535,
            description="the port of that server for browsers, by WebSocket; 0 takes a free one "
            "and keeps it, -1 listens for none",
        ),
    ] = 0
    nats_certificate: Annotated[
        str,
        Field(
            description="a PEM file with certificate and key for that server; "
            "needed beyond this machine"
        ),
    ] = ""
    nats_advertise: Annotated[
        str, Field(description="the host under which sessions reach that server, if another")
    ] = ""
    nats_urls: Annotated[
        tuple[str, ...],
        Field(
            max_length=64,
            description="your own NATS system, such as `tls://nats.example:4222`; "
            "empty starts one here",
        ),
    ] = ()
    nats_websocket_urls: Annotated[
        tuple[str, ...],
        Field(
            max_length=64,
            description="where browsers reach the server, such as `wss://nats.example`: for your "
            "own NATS system, or where a proxy stands before the one here",
        ),
    ] = ()
    nats_keys: Annotated[
        str, Field(description="the folder with the keys and credentials for your own NATS system")
    ] = ""

    events_days: Annotated[
        float, Field(ge=0, le=36500, description="how long events can be replayed; 0 without limit")
    ] = 90
    events_megabytes: Annotated[
        int,
        Field(ge=0, le=_MOST_MEGABYTES, description="how much of them is kept; 0 without limit"),
    ] = 512
    jobs_days: Annotated[
        float,
        Field(ge=0, le=36500, description="how long the history of jobs is kept; 0 without limit"),
    ] = 90
    jobs_megabytes: Annotated[
        int, Field(ge=0, le=_MOST_MEGABYTES, description="how much of it is kept; 0 without limit")
    ] = 256
    work_megabytes: Annotated[
        int,
        Field(
            ge=0,
            le=_MOST_MEGABYTES,
            description="how much jobs that wait may take before more are refused; 0 without limit",
        ),
    ] = 256
    state_megabytes: Annotated[
        int,
        Field(
            ge=0,
            le=_MOST_MEGABYTES,
            description="how much kept state may take before more is refused; 0 without limit",
        ),
    ] = 0

    registry_contracts: Annotated[
        int, Field(ge=1, le=1_000_000, description="how many contracts its registry holds at most")
    ] = 10_000
    registry_versions: Annotated[
        int,
        Field(ge=1, le=100_000, description="how many versions of one contract it holds at most"),
    ] = 1000

    @field_validator("proxies")
    @classmethod
    def _ranges_are_ranges(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            ipaddress.ip_network(network)
        return networks
