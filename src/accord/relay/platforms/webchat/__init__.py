"""The built-in web chat: channels, direct messages and threads on a small page, without an account.

`open_webchat` opens it in a connector process, `open_admin` for operators.
"""

from accord.relay.platforms.settings import WebChatSettings
from accord.relay.platforms.webchat.accounts import Account, PendingInvite
from accord.relay.platforms.webchat.admin import Admin, Channel, Invite, Space, User
from accord.relay.platforms.webchat.chats import Level
from accord.relay.platforms.webchat.messages import addressed_bot, list_waiting_chats
from accord.relay.platforms.webchat.platform import (
    DESCRIPTOR,
    WebChat,
    WebChatPlatform,
    open_admin,
    open_webchat,
)
from accord.relay.platforms.webchat.tables import WEBCHAT

__all__ = [
    "DESCRIPTOR",
    "WEBCHAT",
    "Account",
    "Admin",
    "Channel",
    "Invite",
    "Level",
    "PendingInvite",
    "Space",
    "User",
    "WebChat",
    "WebChatPlatform",
    "WebChatSettings",
    "addressed_bot",
    "list_waiting_chats",
    "open_admin",
    "open_webchat",
]
