"""What an operator chooses about a webhook."""

from ipaddress import ip_network
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, SecretStr, field_validator

from accord.kernel.section import Section

if TYPE_CHECKING:  # the way out is an HTTP client, and every command reads the settings
    from accord.relay.outgoing import OutgoingPolicy


class WebhookSettings(Section):
    """`[[relay.webhook]]`: a program of yours that speaks for people by signed webhooks."""

    name: Annotated[
        str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$", description="its name, and its route key")
    ]
    secret: Annotated[
        SecretStr, Field(description="whsec_ or whpk_ keys that prove what comes in")
    ] = SecretStr("")
    secret_file: Annotated[str, Field(description="a file with these keys instead")] = ""
    url: Annotated[
        str, Field(max_length=2048, description="where agents' actions are posted; empty for none")
    ] = ""
    send_secret: Annotated[
        SecretStr, Field(description="whsec_ or whsk_ keys that sign what goes out")
    ] = SecretStr("")
    send_secret_file: Annotated[str, Field(description="a file with these keys instead")] = ""
    edits: Annotated[bool, Field(description="the receiver can change messages")] = False
    deduplicates: Annotated[
        bool, Field(description="the receiver does nothing twice for one webhook-id")
    ] = False
    max_message_length: Annotated[
        int, Field(ge=64, le=16_000, description="how long one message may be, in characters")
    ] = 4096
    markdown: Annotated[bool, Field(description="the receiver shows Markdown")] = True
    managers: Annotated[
        tuple[str, ...], Field(max_length=100, description="user ids that may claim its chats")
    ] = ()
    open_chats: Annotated[
        bool, Field(description="every user may view every chat of it that is not a dm")
    ] = False
    allow_http: Annotated[bool, Field(description="let the URL be plain `http`")] = False
    ports: Annotated[
        tuple[Annotated[int, Field(ge=1, le=65535)], ...],
        Field(max_length=64, description="ports that the URL may name besides 443"),
    ] = ()
    networks: Annotated[
        tuple[str, ...],
        Field(max_length=64, description="private ranges that the URL may lead to"),
    ] = ()

    @field_validator("networks")
    @classmethod
    def _ranges_are_ranges(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            ip_network(network)
        return networks

    @property
    def outgoing(self) -> "OutgoingPolicy":
        """Where the URL may lead."""
        from accord.relay.outgoing import OutgoingPolicy

        return OutgoingPolicy(
            http=self.allow_http,
            ports=frozenset(self.ports),
            networks=tuple(map(ip_network, self.networks)),
        )
