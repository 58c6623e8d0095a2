"""Discord on this machine, for tests of bots: its REST API and its gateway, version 10.

`FakeDiscord` follows the public documentation of the service. It holds a small world of guilds,
roles, channels, threads and people; what people do there reaches the bot over real sockets, and
what the bot does is checked as the service checks it: token, permissions, intents, limits.

    fake = FakeDiscord(token="t")
    async with fake.serving() as url:                # the API is at url + "/api/v10"
        guild, ada = fake.guild("Harbour"), fake.user("ada")
        guild.join(ada); general = guild.channel("general")
        ada.write(general, "hello", mentions=[fake.bot])             # MESSAGE_CREATE goes out
        await fake.until(lambda: fake.said(general) == ["hello, ada"])

Its trouble is under the test's control: `drop_sockets`, `expire_sessions`, `ask_to_reconnect`,
`silence_acks`, `limit_requests`, `outage`, `lose_answers`, `revoke_token`. Voice and ETF
are not played.
"""

from accord.testing.discord.channels import Channel, ChannelType, Overwrite
from accord.testing.discord.delivering import Answered
from accord.testing.discord.fake import FakeDiscord
from accord.testing.discord.gateway import Gateway
from accord.testing.discord.guilds import Guild, Member, Role
from accord.testing.discord.intents import Intent
from accord.testing.discord.interactions import CallbackType, Interaction
from accord.testing.discord.messages import Attachment, Draft, Message, MessageType
from accord.testing.discord.opcodes import Close, GatewayTerms, Op
from accord.testing.discord.people import User
from accord.testing.discord.permissions import Permission
from accord.testing.discord.rest.limits import Rate, RateTerms

__all__ = [
    "Answered",
    "Attachment",
    "CallbackType",
    "Channel",
    "ChannelType",
    "Close",
    "Draft",
    "FakeDiscord",
    "Gateway",
    "GatewayTerms",
    "Guild",
    "Intent",
    "Interaction",
    "Member",
    "Message",
    "MessageType",
    "Op",
    "Overwrite",
    "Permission",
    "Rate",
    "RateTerms",
    "Role",
    "User",
]
