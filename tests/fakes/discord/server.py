"""`FakeDiscord`: the REST API and the gateway of Discord, version 10, on one port of this machine.

It follows the public documentation of the service. It holds guilds, roles, channels, threads and
people; what people do there reaches the bot over the gateway. Outages, lost answers and slowness
are made by the test and never change the world.
"""

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import h11
from tests.fakes.discord.application import Application
from tests.fakes.discord.channels import Channel
from tests.fakes.discord.delivery import Answered, as_options, deliver, ping, signed, try_endpoint
from tests.fakes.discord.gateway import Gateway
from tests.fakes.discord.guilds import Guild, new_guild
from tests.fakes.discord.intents import Intent
from tests.fakes.discord.interactions import LOADING, Interaction, Interactions
from tests.fakes.discord.messages import Draft, Message
from tests.fakes.discord.opcodes import Close, GatewayTerms
from tests.fakes.discord.people import User
from tests.fakes.discord.rest.api import PREFIX, Answer, Api, Limits, RateTerms, Request, made
from tests.fakes.discord.rest.calls import Service
from tests.fakes.discord.rest.guilds import direct_channel
from tests.fakes.discord.websocket import GatewaySocket
from tests.fakes.discord.world import News, World, may_view
from websockets.exceptions import WebSocketException

from accord.kernel.clock import Clock, SystemClock
from accord.kernel.signing import SigningKey
from accord.testing import HarnessError

_HEAD_BYTES = 64 * 1024
_BODY_BYTES = 8 * 1024 * 1024

Answering = Callable[[Request], Awaitable[Answer | None]]
"""Answers a request; None cuts the connection instead."""
Upgrading = Callable[[GatewaySocket, bytes], Awaitable[None]]
"""Takes over a connection that asks to be a WebSocket, with the head of its request."""


@asynccontextmanager
async def listening(answer: Answering, upgrade: Upgrading) -> AsyncIterator[int]:
    """Listen on a free port of this machine, and end everything that is open in the end."""
    open_tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_tasks.add(task)
        try:
            while await _serve_one(reader, writer, answer, upgrade):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever dialled has gone, or sent no HTTP
        except (WebSocketException, h11.RemoteProtocolError):
            pass
        except asyncio.CancelledError:
            pass  # by the end of listening; asyncio would report it as a failure of the server
        finally:
            open_tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=_HEAD_BYTES)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(open_tasks):
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)
        await server.wait_closed()


async def _serve_one(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    answer: Answering,
    upgrade: Upgrading,
) -> bool:
    """Serve one request; whether another may follow on the connection."""
    head = await reader.readuntil(b"\r\n\r\n")
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(head)
    event = connection.next_event()
    if not isinstance(event, h11.Request):
        return False
    headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
    if headers.get("upgrade", "").lower() == "websocket":
        await upgrade(GatewaySocket(reader, writer), head)
        return False
    # h11 has checked that it is a number.
    length = int(headers.get("content-length", "0"))
    if length > _BODY_BYTES or "transfer-encoding" in headers:
        return False
    body = await reader.readexactly(length)
    connection.receive_data(body)
    while not isinstance(connection.next_event(), h11.EndOfMessage):
        pass  # the body is there in full
    target = event.target.decode("latin-1")
    said = await answer(Request(event.method.decode(), target, headers, body))
    if said is None:
        writer.transport.abort()
        return False
    writer.write(_written(connection, said, has_body=event.method != b"HEAD"))
    await writer.drain()
    return connection.our_state is h11.DONE


def _written(connection: h11.Connection, answer: Answer, *, has_body: bool) -> bytes:
    headers = [*answer.headers.items(), ("Content-Length", str(len(answer.body)))]
    if answer.status == 204:
        headers = list(answer.headers.items())
    parts = [
        connection.send(h11.Response(status_code=answer.status, headers=headers)),
        connection.send(h11.Data(data=answer.body)) if answer.body and has_body else b"",
        connection.send(h11.EndOfMessage()),
    ]
    return b"".join(part or b"" for part in parts)


_PAGE = b"<html><head><title>502 Bad Gateway</title></head><body>cloudflare</body></html>"


@dataclass(eq=False, slots=True)
class Trouble:
    """What goes wrong at the moment.

    Attributes:
        drops: How many of the next requests get no answer and have no effect.
        losses: How many of the next requests have their effect and get no answer.
        delay: Seconds before each answer.
    """

    clock: Clock
    drops: int = 0
    losses: int = 0
    delay: float = 0.0
    _status: int = 500
    _ends_at: float = -math.inf

    def outage(self, seconds: float = math.inf, status: int = 500) -> None:
        """Answer everything with a server error, for a time by the clock or until `recover`."""
        self._status = status
        self._ends_at = self.clock.now() + seconds

    def recover(self) -> None:
        """Have no trouble any more."""
        self._ends_at = -math.inf
        self.drops = self.losses = 0
        self.delay = 0.0

    @property
    def status(self) -> int | None:
        """The error that everything is answered with; None while there is no outage."""
        return self._status if self.clock.now() < self._ends_at else None

    def drops_this(self) -> bool:
        """Whether this request gets no answer and has no effect."""
        if self.drops == 0:
            return False
        self.drops -= 1
        return True

    def loses_this(self) -> bool:
        """Whether this request's answer is lost."""
        if self.losses == 0:
            return False
        self.losses -= 1
        return True


def out_of_order(status: int) -> Answer:
    """What is answered during an outage: the API's own error, or a page from before it."""
    if status == 500:
        return made(500, {"message": "500: Internal Server Error", "code": 0})
    return Answer(status, _PAGE, {"Content-Type": "text/html"})


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
        token: str = "fake-discord-token",
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
