"""The built-in web chat: channels, direct messages and threads on a small page, without an account.

It is a platform like any other: what people write goes to the connector by `ingest`, what agents
say comes by `perform`. `open_webchat` opens it in a connector process, `open_admin` for operators.
"""

from accord.relay.platforms.webchat.access import Level
from accord.relay.platforms.webchat.accounts import Account
from accord.relay.platforms.webchat.admin import Admin, Channel, Invite, Space, User
from accord.relay.platforms.webchat.platform import DESCRIPTOR, WebChatPlatform
from accord.relay.platforms.webchat.settings import WebChatSettings
from accord.relay.platforms.webchat.tables import WEBCHAT
from accord.relay.platforms.webchat.webchat import WebChat, open_admin, open_webchat

__all__ = [
    "DESCRIPTOR",
    "WEBCHAT",
    "Account",
    "Admin",
    "Channel",
    "Invite",
    "Level",
    "Space",
    "User",
    "WebChat",
    "WebChatPlatform",
    "WebChatSettings",
    "open_admin",
    "open_webchat",
]
