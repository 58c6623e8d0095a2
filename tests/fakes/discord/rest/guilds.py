"""Users, guilds, members, channels and threads over REST."""

from typing import Any

from tests.fakes.discord.channels import Channel, ChannelType
from tests.fakes.discord.intents import Intent
from tests.fakes.discord.rest.calls import (
    Call,
    Refused,
    Route,
    bad_form,
    missing_access,
    snowflake,
    unknown,
)
from tests.fakes.discord.world import Json, Permission, World, guild_permissions, may_view


def _me(call: Call) -> tuple[int, Any]:
    return 200, {**call.world.bot.json(), "mfa_enabled": True, "verified": True, "flags": 0}


def _user(call: Call) -> tuple[int, Any]:
    user = call.world.users.get(call.id("user_id"))
    if user is None:
        raise unknown("user")
    return 200, user.json()


def _my_application(call: Call) -> tuple[int, Any]:
    application = call.service.application
    return 200, {
        "id": application.id,
        "name": call.world.bot.name,
        "verify_key": application.public_key,
        "bot": call.world.bot.json(),
        "icon": None,
        "description": "",
        "bot_public": True,
        "bot_require_code_grant": False,
        "team": None,
        "owner": {**call.world.bot.json(), "bot": False},
        "flags": 0,
    }


def _my_guilds(call: Call) -> tuple[int, Any]:
    limit = call.number("limit", 200, 1, 200)
    after = call.number("after", 0, 0, 2**64)
    own: list[Json] = [
        {
            "id": each.id,
            "name": each.name,
            "icon": None,
            "owner": each.owner_id == call.bot_id,
            "permissions": str(int(guild_permissions(each, call.bot_id))),
            "features": [],
        }
        for each in call.world.guilds.values()
        if call.bot_id in each.members and int(each.id) > after
    ]
    return 200, own[:limit]


def _guild(call: Call) -> tuple[int, Any]:
    return 200, call.guild().json()


def _roles(call: Call) -> tuple[int, Any]:
    return 200, [each.json() for each in call.guild().roles.values()]


def _channels(call: Call) -> tuple[int, Any]:
    return 200, [each.json() for each in call.guild().channels]


def _member(call: Call) -> tuple[int, Any]:
    guild, user_id = call.guild(), call.id("user_id")
    if user_id not in call.world.users:
        raise unknown("user")
    if user_id not in guild.members:
        raise unknown("member")
    return 200, guild.members[user_id].json()


def _members(call: Call) -> tuple[int, Any]:
    guild = call.guild()
    if Intent.GUILD_MEMBERS not in call.service.application.enabled:
        raise missing_access()
    limit = call.number("limit", 1, 1, 1000)
    after = call.number("after", 0, 0, 2**64)
    found = sorted((each for each in guild.members if int(each) > after), key=int)
    return 200, [guild.members[each].json() for each in found[:limit]]


def _active_threads(call: Call) -> tuple[int, Any]:
    seen = [each for each in call.guild().threads if may_view(each, call.bot_id)]
    own = [each for each in seen if call.bot_id in each.thread_members]
    return 200, {
        "threads": [each.json() for each in seen],
        "members": [each.thread_member_json(call.bot_id) for each in own],
    }


def _channel(call: Call) -> tuple[int, Any]:
    channel = call.channel()
    made = channel.json()
    if call.bot_id in channel.thread_members:
        made["member"] = channel.thread_member_json(call.bot_id)
    return 200, made


def _thread_members(call: Call) -> tuple[int, Any]:
    channel = _thread(call)
    return 200, [channel.thread_member_json(each) for each in channel.thread_members]


def _thread_member(call: Call) -> tuple[int, Any]:
    channel = _thread(call)
    wanted = call.bot_id if call.params["user_id"] == "@me" else call.id("user_id")
    if wanted not in channel.thread_members:
        raise unknown("member")
    return 200, channel.thread_member_json(wanted)


def _join_thread(call: Call) -> tuple[int, Any]:
    channel = _thread(call)
    if channel.archived:
        raise Refused(400, 50083, "Thread is archived")
    if call.bot_id not in channel.thread_members:
        channel.add_to_thread(call.world.bot)
    return 204, None


def _start_thread(call: Call) -> tuple[int, Any]:
    kind = call.member("type", int, int(ChannelType.PRIVATE_THREAD))
    private = kind == ChannelType.PRIVATE_THREAD
    needed = Permission.CREATE_PRIVATE_THREADS if private else Permission.CREATE_PUBLIC_THREADS
    channel = _parent(call, needed)
    return 201, channel.thread(_name(call), call.world.bot, private=private).json()


def _start_thread_on(call: Call) -> tuple[int, Any]:
    channel = _parent(call, Permission.CREATE_PUBLIC_THREADS)
    message = channel.messages.get(call.id("message_id"))
    if message is None:
        raise unknown("message")
    if message.id in call.world.channels:
        raise Refused(400, 160004, "A thread has already been created for this message")
    return 201, channel.thread(_name(call), call.world.bot, on=message).json()


def _open_dm(call: Call) -> tuple[int, Any]:
    user = call.world.users.get(snowflake(call.form().get("recipient_id"), "recipient_id"))
    if user is None:
        raise unknown("user")
    if user is call.world.bot:
        raise Refused(400, 50003, "Cannot execute action on a DM channel")
    return 200, direct_channel(call.world, user.id).json()


def direct_channel(world: World, user_id: str) -> Channel:
    """The one channel of direct messages between the bot and a user."""
    for each in world.channels.values():
        if each.kind is ChannelType.DM and user_id in each.recipients:
            return each
    user = world.users[user_id]
    made = Channel(world, world.new_id(), user.name, ChannelType.DM)
    made.recipients.update({world.bot_id: world.bot, user.id: user})
    world.channels[made.id] = made
    return made


def _gateway(call: Call) -> tuple[int, Any]:
    return 200, {"url": call.service.gateway.url}


def _gateway_bot(call: Call) -> tuple[int, Json]:
    return 200, call.service.gateway.bot_json()


def _thread(call: Call) -> Channel:
    channel = call.channel()
    if not channel.is_thread:
        raise Refused(400, 50024, "Cannot execute action on this channel type")
    return channel


def _parent(call: Call, needed: Permission) -> Channel:
    channel = call.channel()
    if channel.guild is None or channel.is_thread or not channel.takes_messages:
        raise Refused(400, 50024, "Cannot execute action on this channel type")
    return call.channel(needed)


def _name(call: Call) -> str:
    name: str = call.member("name", str, "")
    if not 1 <= len(name) <= 100:
        raise bad_form("name", "BASE_TYPE_BAD_LENGTH", "Must be between 1 and 100 in length.")
    return name


ROUTES = (
    Route("GET", "/gateway", _gateway, is_open=True),
    Route("GET", "/gateway/bot", _gateway_bot),
    Route("GET", "/users/@me", _me),
    Route("GET", "/applications/@me", _my_application),
    Route("GET", "/oauth2/applications/@me", _my_application),
    Route("GET", "/users/@me/guilds", _my_guilds),
    Route("POST", "/users/@me/channels", _open_dm),
    Route("GET", "/users/{user_id}", _user),
    Route("GET", "/guilds/{guild_id}", _guild),
    Route("GET", "/guilds/{guild_id}/roles", _roles),
    Route("GET", "/guilds/{guild_id}/channels", _channels),
    Route("GET", "/guilds/{guild_id}/members", _members),
    Route("GET", "/guilds/{guild_id}/members/{user_id}", _member),
    Route("GET", "/guilds/{guild_id}/threads/active", _active_threads),
    Route("GET", "/channels/{channel_id}", _channel),
    Route("POST", "/channels/{channel_id}/threads", _start_thread),
    Route("POST", "/channels/{channel_id}/messages/{message_id}/threads", _start_thread_on),
    Route("GET", "/channels/{channel_id}/thread-members", _thread_members),
    Route("GET", "/channels/{channel_id}/thread-members/{user_id}", _thread_member),
    Route("PUT", "/channels/{channel_id}/thread-members/@me", _join_thread),
)
