"""Telegram, by the Bot API: long polling or webhooks in, messages and edits out.

Private chats, groups, forums with their topics, and channels. `open_telegram` opens one bot.
"""

from accord.relay.platforms.settings import TelegramSettings
from accord.relay.platforms.telegram.edge import (
    BotApi,
    Poller,
    RecentTopics,
    RetryingApi,
    TelegramResponse,
    UpdateHandler,
    WebhookEdge,
)
from accord.relay.platforms.telegram.platform import (
    DESCRIPTOR,
    TelegramPlatform,
    TelegramSender,
    open_telegram,
)
from accord.relay.platforms.telegram.rules import (
    UPDATE_KINDS,
    BotUser,
    escape_markdown,
    render_markdown,
    stale_chat,
    update_inbound,
)

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
