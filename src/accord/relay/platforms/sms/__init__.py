"""Text messages by Twilio: signed webhooks in, the REST API out, one platform for each number."""

from accord.relay.platforms.settings import SmsSettings
from accord.relay.platforms.sms.platform import (
    DESCRIPTOR,
    SmsPlatform,
    message_inbound,
    open_sms,
    read_form,
    read_json,
)
from accord.relay.platforms.sms.rules import (
    Fields,
    Segments,
    is_signed,
    is_signed_json,
    segments,
    sign,
)

__all__ = [
    "DESCRIPTOR",
    "Fields",
    "Segments",
    "SmsPlatform",
    "SmsSettings",
    "is_signed",
    "is_signed_json",
    "message_inbound",
    "open_sms",
    "read_form",
    "read_json",
    "segments",
    "sign",
]
