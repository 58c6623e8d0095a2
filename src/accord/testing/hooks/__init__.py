"""Services that call by webhook, in memory: Twilio, WeCom and a program with signed webhooks.

Each is served on a port of this machine (`async with TwilioService.served() as twilio`), has the
`settings` of a connector that uses it, lets people `write`, and keeps what the bot `said`.
"""

from accord.testing.hooks.program import ProgramService
from accord.testing.hooks.service import HookService, Said, Trouble, serving
from accord.testing.hooks.twilio import TwilioService
from accord.testing.hooks.wecom import WecomService

__all__ = [
    "HookService",
    "ProgramService",
    "Said",
    "Trouble",
    "TwilioService",
    "WecomService",
    "serving",
]
