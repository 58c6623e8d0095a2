"""Requests for the members of a guild over the gateway, and the chunks that answer them.

Owns the reading of the request. It changes nothing.
"""

from typing import Any

from accord.testing.discord.intents import Intent
from accord.testing.discord.opcodes import Close, SocketClosed
from accord.testing.discord.world import Json, World

_CHUNK = 1000
_MOST_IDS = 100


def member_chunks(world: World, body: Any, intents: Intent) -> list[Json]:
    """What GUILD_MEMBERS_CHUNK says, one for each thousand; nothing of a foreign guild.

    Raises:
        SocketClosed: The request has not the documented form.
    """
    form = body if isinstance(body, dict) else {}
    query, limit, asked = form.get("query"), form.get("limit", 0), form.get("user_ids")
    ids = None if asked is None else _ids(asked if isinstance(asked, list) else [asked])
    if type(limit) is not int or limit < 0 or (ids is None and not isinstance(query, str)):
        raise _malformed()
    (guild_id,) = _ids([form.get("guild_id")])
    guild = world.guilds.get(guild_id)
    if guild is None or world.bot_id not in guild.members:
        return []
    if ids is not None:
        found = [guild.members[each] for each in ids if each in guild.members]
    elif query or limit:
        begins = [m for m in guild.members.values() if m.user.name.startswith(query or "")]
        found = begins[: limit or _CHUNK]
    elif Intent.GUILD_MEMBERS in intents:
        found = list(guild.members.values())
    else:
        raise SocketClosed(Close.DISALLOWED_INTENTS, "Disallowed intent(s).")
    pages = [found[at : at + _CHUNK] for at in range(0, len(found), _CHUNK)] or [[]]
    told: Json = {"guild_id": guild.id, "chunk_count": len(pages)}
    if ids is not None:
        told["not_found"] = [each for each in ids if each not in guild.members]
    if isinstance(form.get("nonce"), str):
        told["nonce"] = form["nonce"]
    return [
        {**told, "chunk_index": at, "members": [each.json() for each in page]}
        for at, page in enumerate(pages)
    ]


def _ids(found: list[Any]) -> list[str]:
    # A snowflake may also come as a number.
    if len(found) > _MOST_IDS or not all(type(each) in (str, int) for each in found):
        raise _malformed()
    return [str(each) for each in found]


def _malformed() -> SocketClosed:
    return SocketClosed(Close.UNKNOWN_OPCODE, "A request for members of the wrong form.")
