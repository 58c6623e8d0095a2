"""What an operator may choose about a Telegram bot.

Owns the names, defaults and limits; it reads no file.
"""

from typing import Literal

from pydantic import Field, SecretStr

from accord.kernel.section import Section


class TelegramSettings(Section):
    """One bot on Telegram."""

    token: SecretStr = Field(
        default=SecretStr(""), description="the bot's token, as BotFather gave it"
    )
    token_file: str = Field(
        default="", description="a file with the token, in place of the token itself"
    )
    mode: Literal["poll", "webhook"] = Field(
        default="poll",
        description="whether the connector asks Telegram for news, or is called by Telegram",
    )
    api_url: str = Field(
        default="https://api.telegram.org",
        pattern=r"^https?://[^\s?#]+$",
        description="where the Bot API is; another one is a Bot API server of your own",
    )
    drafts: bool = Field(
        default=False,
        description="whether an answer in a private chat is shown as a draft while it grows",
    )
    poll_seconds: int = Field(
        default=25, ge=1, le=50, description="how long Telegram may keep a question for news open"
    )
