"""A platform with webhooks between a stand-in of its service and a connector that keeps."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from tests.fakes.platform import KeptContext
from tests.fakes.webhooks.program import ProgramService
from tests.fakes.webhooks.service import HookService, serving
from tests.fakes.webhooks.twilio import TwilioService
from tests.fakes.webhooks.wecom import WecomService

from accord.kernel.clock import Clock, SystemClock
from accord.relay.platforms import webhook
from accord.relay.platforms.sms import SmsPlatform, open_sms
from accord.relay.platforms.wecom import WecomPlatform, open_wecom

PUBLIC = "https://bots.example"
ANN = "+15551230001"


@dataclass
class Sms:
    service: TwilioService
    platform: SmsPlatform
    context: KeptContext


@dataclass
class Wecom:
    service: WecomService
    platform: WecomPlatform
    context: KeptContext


@dataclass
class Hook:
    service: ProgramService
    platform: webhook.WebhookPlatform
    context: KeptContext


@asynccontextmanager
async def at_edge(service: HookService, platform: Any) -> AsyncIterator[KeptContext]:
    context = KeptContext()
    platform.bind(context)
    service.public_url = PUBLIC
    async with serving(platform.routes) as url:
        service.inner_url = url
        yield context


@asynccontextmanager
async def sms(clock: Clock | None = None) -> AsyncIterator[Sms]:
    async with (
        TwilioService.served() as service,
        open_sms(service.settings, clock or SystemClock(), PUBLIC) as platform,
        at_edge(service, platform) as context,
    ):
        yield Sms(service, platform, context)


@asynccontextmanager
async def wecom(clock: Clock | None = None) -> AsyncIterator[Wecom]:
    async with WecomService.served() as service:
        service.clock = clock or SystemClock()
        async with (
            open_wecom(service.settings, service.clock, PUBLIC) as platform,
            at_edge(service, platform) as context,
        ):
            yield Wecom(service, platform, context)


@asynccontextmanager
async def hook(clock: Clock | None = None, **chosen: Any) -> AsyncIterator[Hook]:
    async with ProgramService.served() as service:
        service.clock = clock or SystemClock()
        settings = service.settings.model_copy(update=chosen)
        async with (
            webhook.open_webhook(settings, service.clock, PUBLIC) as platform,
            at_edge(service, platform) as context,
        ):
            yield Hook(service, platform, context)


async def send(service: HookService, request: httpx.Request) -> httpx.Response:
    return await service.call(lambda: request)
