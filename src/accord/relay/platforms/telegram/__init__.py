"""Telegram, by the Bot API: long polling or webhooks in, messages and edits out.

Private chats, groups, forums with their topics, and channels. `open_telegram` opens one bot.
"""

from accord.relay.platforms.settings.telegram import TelegramSettings
from accord.relay.platforms.telegram.platform import DESCRIPTOR, TelegramPlatform, open_telegram

__all__ = ["DESCRIPTOR", "TelegramPlatform", "TelegramSettings", "open_telegram"]
