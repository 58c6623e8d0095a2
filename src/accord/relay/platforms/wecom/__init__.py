"""Applications in WeCom: encrypted callbacks in, the API out, one platform for each application."""

from accord.relay.platforms.settings import WecomSettings
from accord.relay.platforms.wecom.platform import (
    DESCRIPTOR,
    WecomPlatform,
    message_inbound,
    open_wecom,
    user_of_chat,
)
from accord.relay.platforms.wecom.rules import BizMsgCrypt, read_crypt, read_xml

__all__ = [
    "DESCRIPTOR",
    "BizMsgCrypt",
    "WecomPlatform",
    "WecomSettings",
    "message_inbound",
    "open_wecom",
    "read_crypt",
    "read_xml",
    "user_of_chat",
]
