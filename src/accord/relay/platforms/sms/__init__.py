"""Text messages by Twilio: signed webhooks in, the REST API out, one platform for each number."""

from accord.relay.platforms.settings.sms import SmsSettings
from accord.relay.platforms.sms.platform import DESCRIPTOR, SmsPlatform, open_sms
from accord.relay.platforms.sms.segments import Segments, segments

__all__ = ["DESCRIPTOR", "Segments", "SmsPlatform", "SmsSettings", "open_sms", "segments"]
