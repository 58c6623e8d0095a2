"""Generic webhooks in and out, signed as Standard Webhooks has it: a platform for each program."""

from accord.relay.platforms.webhook.incoming import SCHEMA
from accord.relay.platforms.webhook.platform import DESCRIPTOR, WebhookPlatform, open_webhook
from accord.relay.platforms.webhook.settings import WebhookSettings

__all__ = ["DESCRIPTOR", "SCHEMA", "WebhookPlatform", "WebhookSettings", "open_webhook"]
