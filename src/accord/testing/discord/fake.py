"""`FakeDiscord`: the world, the API and the gateway put together, and what a test does with them.

Owns nothing but the composition, and the waiting.
"""

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from accord.kernel.clock import Clock, SystemClock
from accord.kernel.signing import SigningKey
from accord.testing.discord.application import Application
from accord.testing.discord.channels import Channel
from accord.testing.discord.delivering import (
    Answered,
    as_options,
    deliver,
    ping,
    signed,
    try_endpoint,
)
from accord.testing.discord.gateway import Gateway
from accord.testing.discord.guilds import Guild, new_guild
from accord.testing.discord.intents import Intent
from accord.testing.discord.interactions import LOADING, Interaction, Interactions
from accord.testing.discord.messages import Draft, Message
from accord.testing.discord.opcodes import Close, GatewayTerms
from accord.testing.discord.people import User
from accord.testing.discord.permissions import may_view
from accord.testing.discord.rest.api import PREFIX, Answer, Api, Request
from accord.testing.discord.rest.calls import Service
from accord.testing.discord.rest.limits import Limits, RateTerms
from accord.testing.discord.rest.places import direct_channel
from accord.testing.discord.server import listening
from accord.testing.discord.trouble import Trouble, out_of_order
from accord.testing.discord.websocket import GatewaySocket
from accord.testing.discord.world import News, World
from accord.testing.errors import HarnessError

_SWITCHED_ON = Intent.GUILD_MEMBERS | Intent.MESSAGE_CONTENT


class FakeDiscord:
    """The service, with one bot.

    Args:
        token: The bot's token.
        clock: Where ids, limits and expiries come from. Heartbeats and answers take real time.
        seed: Where session ids, interaction tokens and the signing key come from.
        enabled: The privileged intents that the application has switched on.
        terms: How the gateway behaves.
        rates: How often the bot may ask what.

    Attributes:
        bot: The bot; its id is the application's.
        gateway: Its sessions and sockets, for tests that look closely.
        api: The requests that were made.
        trouble: What goes wrong at the moment.
    """

    def __init__(
        self,
        *,
        token: str = "fake-discord-token",  # noqa: S107 - it opens nothing
        clock: Clock | None = None,
        seed: int = 0,
        enabled: Intent = _SWITCHED_ON,
        terms: GatewayTerms | None = None,
        rates: RateTerms | None = None,
    ) -> None:
        self.world = World(clock or SystemClock(), seed)
        self.bot = User(self.world, self.world.new_id(), "bot", is_bot=True)
        self.world.users[self.bot.id] = self.bot
        self.world.bot_id = self.bot.id
        key = SigningKey(hashlib.sha256(b"fake discord %d" % seed).digest())
        self.application = Application(self.bot.id, token, key, enabled)
        self.trouble = Trouble(self.world.clock)
        self._changes = asyncio.Event()
        self.gateway = Gateway(self.world, self.application, terms or GatewayTerms(), self._changed)
        self.interactions = Interactions(self.world, self.application)
        self._service = Service(self.world, self.application, self.gateway, self.interactions)
        self.api = Api(self._service, Limits(self.world.clock, rates or RateTerms()))
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Listen on a free port of this machine; gives the address, such as http://127.0.0.1:1."""
        async with listening(self._answer, self._upgrade) as port:
            self.url = f"http://127.0.0.1:{port}"
            self.gateway.url = f"ws://127.0.0.1:{port}"
            yield self.url

    @property
    def api_url(self) -> str:
        """Where the API is, once it is served."""
        return self.url + PREFIX

    @property
    def token(self) -> str:
        """The bot's token.

        Raises:
            HarnessError: It was revoked.
        """
        if self.application.token is None:
            raise HarnessError("the bot has no token now", mend="give it one: new_token")
        return self.application.token

    @property
    def public_key(self) -> str:
        """What verifies interactions, in hexadecimal."""
        return self.application.public_key

    def user(self, name: str, *, is_bot: bool = False) -> User:
        """Let somebody have an account."""
        made = User(self.world, self.world.new_id(), name, is_bot)
        self.world.users[made.id] = made
        return made

    def guild(self, name: str, owner: User | None = None, *, bot: bool = True) -> Guild:
        """Found a guild; the bot is in it from the start unless it is kept out."""
        made = new_guild(self.world, name, owner or self.user(f"owner of {name}"))
        if bot:
            made.join(self.bot)
        return made

    def dm(self, user: User) -> Channel:
        """The direct messages between a user and the bot."""
        return direct_channel(self.world, user.id)

    def webhook(self, channel: Channel, name: str, text: str) -> Message:
        """Let a webhook that nobody is behind write in a channel."""
        made = User(self.world, self.world.new_id(), name, is_bot=True)
        return channel.post(Draft(made, text, webhook_id=made.id, is_loud=True))

    def messages(self, channel: Channel) -> list[Message]:
        """The bot's messages in a channel, in order; what is still loading is not among them."""
        own = (each for each in channel.messages.values() if each.author is self.bot)
        return [each for each in own if not each.flags & LOADING]

    def said(self, channel: Channel) -> list[str]:
        """What the bot said in a channel, as it stands now, in order."""
        return [each.content for each in self.messages(channel)]

    def typed(self, channel: Channel) -> int:
        """How often the bot was seen typing in a channel."""
        return self._service.typed.count(channel.id)

    async def until(self, condition: Callable[[], bool], *, within: float = 20.0) -> None:
        """Wait until something holds that changes with what happens here.

        Raises:
            HarnessError: It did not hold in time.
        """
        try:
            async with asyncio.timeout(within):
                while not condition():
                    await self._changes.wait()
        except TimeoutError:
            raise HarnessError(
                f"what was awaited did not happen within {within:g} seconds"
            ) from None

    async def interact(
        self,
        user: User,
        channel: Channel,
        command: str,
        options: Mapping[str, Any] | None = None,
        *,
        endpoint: str,
    ) -> Answered:
        """Let a user give a command that is posted to the bot's endpoint.

        Raises:
            HarnessError: The user may not, no answer came in time, or one of the wrong form.
        """
        interaction = self.command(user, channel, command, options)
        try:
            return await deliver(interaction, self.interactions, self.application.key, endpoint)
        finally:
            self._changed()

    def interact_by_gateway(
        self, user: User, channel: Channel, command: str, options: Mapping[str, Any] | None = None
    ) -> Interaction:
        """Let a user give a command of which a bot without an endpoint is told by its gateway."""
        interaction = self.command(user, channel, command, options)
        self.world.tell(News("INTERACTION_CREATE", interaction.payload, channel.guild))
        return interaction

    def command(
        self, user: User, channel: Channel, command: str, options: Mapping[str, Any] | None = None
    ) -> Interaction:
        """Let a user give a command that reaches nobody yet, for a test that delivers by itself."""
        if not may_view(channel, user.id):
            raise HarnessError(f"{user.name} does not see #{channel.name}")
        return self.interactions.begin(user, channel, command, as_options(options or {}))

    def signed(self, body: bytes, timestamp: str | None = None) -> dict[str, str]:
        """The headers with which the service would post a body."""
        return signed(self.application.key, timestamp or str(int(self.world.clock.now())), body)

    async def ping(self, endpoint: str) -> Answered:
        """Ask an endpoint whether anybody is there."""
        return await ping(self.world, self.application.key, self.application.id, endpoint)

    async def try_endpoint(self, endpoint: str) -> None:
        """Try an endpoint as the service does before it registers one, and now and then later.

        Raises:
            HarnessError: A ping gets no pong, or one that was tampered with is not refused.
        """
        await try_endpoint(self.world, self.application.key, self.application.id, endpoint)

    def limit_requests(self, *waits: float) -> None:
        """Turn the next requests away with 429, each for so many seconds."""
        self.api.limits.force(waits)

    def drop_sockets(self) -> None:
        """Cut every socket of the gateway, without a word."""
        self.gateway.drop_sockets()

    def expire_sessions(self) -> None:
        """Let no session be resumed any more."""
        self.gateway.expire_sessions()

    def ask_to_reconnect(self) -> None:
        """Ask every socket to reconnect and resume."""
        self.gateway.ask_to_reconnect()

    def silence_acks(self, *, silent: bool = True) -> None:
        """Acknowledge no heartbeat, as a connection does that died unnoticed."""
        self.gateway.acks = not silent

    def outage(self, seconds: float = math.inf, status: int = 500) -> None:
        """Answer everything with a server error, for a time by the clock or until `recover`."""
        self.trouble.outage(seconds, status)

    def drop_requests(self, count: int = 1) -> None:
        """Give the next requests no answer and no effect."""
        self.trouble.drops += count

    def lose_answers(self, count: int = 1) -> None:
        """Give the next requests their effect and no answer."""
        self.trouble.losses += count

    def slow_answers(self, seconds: float) -> None:
        """Let every answer take some real time more."""
        self.trouble.delay = seconds

    def recover(self) -> None:
        """Have no trouble any more."""
        self.trouble.recover()

    def revoke_token(self) -> None:
        """Make the bot's token worthless, and show the bot the door."""
        self.application.token = None
        self.gateway.close_sockets(Close.AUTHENTICATION_FAILED, "Authentication failed.")

    def new_token(self, token: str) -> None:
        """Give the bot another token."""
        self.application.token = token

    async def _answer(self, request: Request) -> Answer | None:
        if self.trouble.delay:
            await asyncio.sleep(self.trouble.delay)
        if self.trouble.drops_this():
            return None
        status = self.trouble.status
        if status is not None:
            return out_of_order(status)
        loses = self.trouble.loses_this()
        answer = self.api.answer(request)
        self._changed()
        return None if loses else answer

    async def _upgrade(self, socket: GatewaySocket, head: bytes) -> None:
        status = self.trouble.status
        if status is not None:
            socket.refuse(head, status)
        elif socket.accept(head):
            await self.gateway.converse(socket)

    def _changed(self) -> None:
        # Everybody who waits looks again.
        self._changes.set()
        self._changes = asyncio.Event()
