"""Generic webhooks in and out, signed by Standard Webhooks: a platform for each program."""

from accord.relay.platforms.settings import WebhookSettings
from accord.relay.platforms.webhook.platform import (
    DESCRIPTOR,
    SCHEMA,
    WebhookChat,
    WebhookPlatform,
    chat_id_of,
    message_inbound,
    open_webhook,
    read_chat_id,
)
from accord.relay.platforms.webhook.rules import WebhookKeys, read_keys

__all__ = [
    "DESCRIPTOR",
    "SCHEMA",
    "WebhookChat",
    "WebhookKeys",
    "WebhookPlatform",
    "WebhookSettings",
    "chat_id_of",
    "message_inbound",
    "open_webhook",
    "read_chat_id",
    "read_keys",
]
