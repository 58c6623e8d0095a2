"""Telegram, by the Bot API: long polling or webhooks in, messages and edits out.

Private chats, groups, forums with their topics, and channels. `open_telegram` opens one bot.
"""

from accord.relay.platforms.telegram.platform import DESCRIPTOR, TelegramPlatform, open_telegram
from accord.relay.platforms.telegram.settings import TelegramSettings

__all__ = ["DESCRIPTOR", "TelegramPlatform", "TelegramSettings", "open_telegram"]
