"""Telegram, by the Bot API: long polling or webhooks in, messages and edits out.

Private chats, groups, forums with their topics, and channels. `open_telegram` opens one bot.
"""

from accord.relay.platforms.settings import TelegramSettings
from accord.relay.platforms.telegram.api import (
    BotApi,
    RetryingApi,
    TelegramResponse,
)
from accord.relay.platforms.telegram.edge import Poller, WebhookEdge
from accord.relay.platforms.telegram.events import (
    UPDATE_KINDS,
    RecentTopics,
    UpdateHandler,
    stale_chat,
    update_inbound,
)
from accord.relay.platforms.telegram.platform import (
    DESCRIPTOR,
    TelegramPlatform,
    TelegramSender,
    open_telegram,
)
from accord.relay.platforms.telegram.rules import BotUser, escape_markdown, render_markdown

__all__ = [
    "DESCRIPTOR",
    "UPDATE_KINDS",
    "BotApi",
    "BotUser",
    "Poller",
    "RecentTopics",
    "RetryingApi",
    "TelegramPlatform",
    "TelegramResponse",
    "TelegramSender",
    "TelegramSettings",
    "UpdateHandler",
    "WebhookEdge",
    "escape_markdown",
    "open_telegram",
    "render_markdown",
    "stale_chat",
    "update_inbound",
]
