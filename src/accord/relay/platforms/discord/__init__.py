"""Discord: guilds, threads and direct messages over its gateway, answers over its API.

A bot listens by one gateway session, resumed where possible; messages missed meanwhile are read
by the API. Interactions come in by HTTP or by the gateway (`edge`).
"""

from accord.relay.platforms.discord.edge import InteractionEndpoint
from accord.relay.platforms.discord.events import is_signed, message_inbound
from accord.relay.platforms.discord.platform import DESCRIPTOR, DiscordPlatform, open_discord
from accord.relay.platforms.discord.rules.permissions import (
    ALL,
    ChatCache,
    DiscordChat,
    Guild,
    GuildChannel,
    GuildMember,
    Overwrite,
    Permission,
    channel_permissions,
    guild_permissions,
    hidden_channels,
    read_channel,
    read_chat,
    read_guild,
    read_member,
    thread_permissions,
)
from accord.relay.platforms.discord.rules.protocol import (
    ApiRoute,
    Checkpoint,
    GatewaySession,
    Heartbeat,
    NextStep,
    RateLimits,
    after_close,
    identify_payload,
    merge_commands,
    read_commands,
    resume_payload,
    retry_after,
)
from accord.relay.platforms.discord.sender import nonce
from accord.relay.platforms.settings import DiscordSettings

__all__ = [
    "ALL",
    "DESCRIPTOR",
    "ApiRoute",
    "ChatCache",
    "Checkpoint",
    "DiscordChat",
    "DiscordPlatform",
    "DiscordSettings",
    "GatewaySession",
    "Guild",
    "GuildChannel",
    "GuildMember",
    "Heartbeat",
    "InteractionEndpoint",
    "NextStep",
    "Overwrite",
    "Permission",
    "RateLimits",
    "after_close",
    "channel_permissions",
    "guild_permissions",
    "hidden_channels",
    "identify_payload",
    "is_signed",
    "merge_commands",
    "message_inbound",
    "nonce",
    "open_discord",
    "read_channel",
    "read_chat",
    "read_commands",
    "read_guild",
    "read_member",
    "resume_payload",
    "retry_after",
    "thread_permissions",
]
