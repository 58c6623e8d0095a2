"""What an operator chooses about one bot on Discord."""

from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from accord.kernel.section import Section

_Number = Annotated[int, Field(ge=0)]


class DiscordSettings(Section):
    """One bot on Discord."""

    application_id: str = Field(
        pattern=r"^[0-9]{1,20}$",
        description="the application's id, which is also its bot's; General Information shows it",
    )
    token: SecretStr = Field(default=SecretStr(""), description="the bot's token")
    token_file: str = Field(
        default="", description="a file with the bot's token, instead of the token"
    )
    public_key: str = Field(
        default="",
        pattern=r"^([0-9a-fA-F]{64})?$",
        description="the application's public key, by which interactions are verified that Discord "
        "posts to the station; empty where it posts none",
    )
    shard: tuple[_Number, Annotated[int, Field(ge=1)]] = Field(
        default=(0, 1), description="the number of this shard, and how many there are"
    )
    message_content: bool = Field(
        default=True,
        description="whether to ask for what people write where they do not mention the bot: a "
        "privileged intent",
    )
    member_events: bool = Field(
        default=False,
        description="whether to ask to be told when somebody's roles change: a privileged intent. "
        "Without it a role that was taken away counts for up to half a minute",
    )
    mentions: tuple[Literal["users", "roles", "everyone"], ...] = Field(
        default=(), description="whom a mention in an agent's text may notify"
    )
    backfill_hours: float = Field(
        default=24.0,
        ge=0,
        le=24 * 14,
        description="how old a message may be that is fetched after the session was lost",
    )
    api_url: str = Field(
        default="https://discord.com/api/v10",
        pattern=r"^https?://[^\s?#@]+$",
        description="where Discord's API is",
    )

    @model_validator(mode="after")
    def _is_one_of_the_shards(self) -> Self:
        if self.shard[0] >= self.shard[1]:
            raise ValueError("shards are numbered from 0, so the number is less than the count")
        return self
