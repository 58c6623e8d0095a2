"""Applications in WeCom: sealed callbacks in, the API out, one platform for each application."""

from accord.relay.platforms.settings.wecom import WecomSettings
from accord.relay.platforms.wecom.platform import DESCRIPTOR, WecomPlatform, open_wecom

__all__ = ["DESCRIPTOR", "WecomPlatform", "WecomSettings", "open_wecom"]
