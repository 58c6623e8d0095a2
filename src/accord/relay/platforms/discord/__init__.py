"""Discord: guilds, threads and direct messages over its gateway, answers over its API.

A bot listens by one gateway session that is resumed wherever that is possible; what is missed when
it is lost is read by the API (`listening`, `intake`, `memory`). Interactions come in by HTTP
(`door`) or by the gateway (`promising`). What people see is computed from roles and overwrites as
Discord documents it (`permissions`, `sight`). `open_discord` opens a bot in a connector process.
"""

from accord.relay.platforms.discord.platform import DESCRIPTOR, DiscordPlatform, open_discord
from accord.relay.platforms.settings.discord import DiscordSettings

__all__ = ["DESCRIPTOR", "DiscordPlatform", "DiscordSettings", "open_discord"]
