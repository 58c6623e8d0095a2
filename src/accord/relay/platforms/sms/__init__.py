"""Text messages by Twilio: signed webhooks in, the REST API out, one platform for each number."""

from accord.relay.platforms.sms.platform import DESCRIPTOR, SmsPlatform, open_sms
from accord.relay.platforms.sms.segments import Segments, segments
from accord.relay.platforms.sms.settings import SmsSettings

__all__ = ["DESCRIPTOR", "Segments", "SmsPlatform", "SmsSettings", "open_sms", "segments"]
