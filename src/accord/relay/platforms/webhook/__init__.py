"""Generic webhooks in and out, signed as Standard Webhooks has it: a platform for each program."""

from accord.relay.platforms.settings.webhook import WebhookSettings
from accord.relay.platforms.webhook.incoming import SCHEMA
from accord.relay.platforms.webhook.platform import DESCRIPTOR, WebhookPlatform, open_webhook

__all__ = ["DESCRIPTOR", "SCHEMA", "WebhookPlatform", "WebhookSettings", "open_webhook"]
