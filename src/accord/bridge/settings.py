"""The settings `[bridge]`."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from accord.kernel.section import Section


class BridgeSettings(Section):
    """`[bridge]`: capabilities as contracts, and services as capabilities."""

    enabled: Annotated[
        bool, Field(description="bridge them, where this station runs an authority")
    ] = True
    accept: Annotated[
        bool,
        Field(
            description="accept the bridge's own contracts when the station starts; otherwise "
            "somebody accepts their plans"
        ),
    ] = False
    capabilities: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){1,7}$")], ...],
        Field(
            max_length=64,
            description="the capabilities that services may call, where the node offers them",
        ),
    ] = (
        "embed.text",
        "file.list",
        "file.read",
        "llm.chat",
        "llm.complete",
        "market.list",
        "market.search",
        "rag.list_corpora",
        "rag.query",
    )
    services: Annotated[
        tuple[str, ...],
        Field(
            max_length=64,
            description="which RPCs members may call, such as `shop@v1/Shop.Find`; none by default",
        ),
    ] = ()
    level: Annotated[
        Literal["member", "trusted", "anchor"],
        Field(description="how far the community must trust those who call services"),
    ] = "member"
    community: Annotated[
        str,
        Field(
            pattern=r"^(ed25519:[A-Za-z0-9_-]{43})?$",
            description="which community is bridged; empty for the first",
        ),
    ] = ""

    @field_validator("services")
    @classmethod
    def _services_can_be_chosen(cls, services: tuple[str, ...]) -> tuple[str, ...]:
        # Every command reads settings, and few of them need contracts.
        from accord.bridge.rules import BridgeError, choose_rpcs

        try:
            choose_rpcs(services)
        except BridgeError as error:
            raise ValueError(str(error)) from None
        return services
