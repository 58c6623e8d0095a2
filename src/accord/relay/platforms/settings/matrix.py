"""What an operator says about one Matrix bot."""

from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from accord.kernel.section import Section

Invites = Literal["anyone", "nobody", "server"]


class MatrixSettings(Section):
    """One bot on Matrix."""

    homeserver: str = Field(
        pattern=r"^https?://[^\s/]+(/[^\s?#]*)?$",
        description="the address of the homeserver's client interface: https://matrix.example.org",
    )
    user_id: str = Field(
        pattern=r"^@[a-zA-Z0-9._=/+-]{1,128}:[a-zA-Z0-9.:\[\]-]{1,230}$",
        description="who the bot is there: @agent:example.org",
    )
    access_token: SecretStr = Field(
        default=SecretStr(""),
        description="the bot's access token; of an application service, its as_token",
    )
    access_token_file: str = Field(default="", description="a file that holds the access token")
    mode: Literal["sync", "appservice"] = Field(
        default="sync",
        description="whether the bot asks for news, or is an application service that is told",
    )
    hs_token: SecretStr = Field(
        default=SecretStr(""),
        description="what the homeserver proves itself by; for an application service only",
    )
    hs_token_file: str = Field(default="", description="a file that holds the hs_token")
    invites: Invites | tuple[str, ...] = Field(
        default="server",
        description=(
            "whose invitations are accepted: anyone's, nobody's, those of users of the bot's own"
            " server, or of a list of user ids and servers"
        ),
    )
    notices: bool = Field(
        default=False,
        description="whether answers are notices, which notify nobody and no other bot answers",
    )
    sync_seconds: int = Field(
        default=30, ge=0, le=120, description="how long the homeserver may wait for news"
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        has_hs_token = bool(self.hs_token.get_secret_value() or self.hs_token_file)
        if has_hs_token != (self.mode == "appservice"):
            raise ValueError("an application service, and nothing else, has an hs_token")
        return self
