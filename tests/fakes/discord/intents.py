"""Which session is told of what: intents, visibility, shards, and who may read content."""

from enum import IntFlag

from tests.fakes.discord.world import Json, News, may_view


class Intent(IntFlag):
    """What a session can ask to be told."""

    GUILDS = 1 << 0
    GUILD_MEMBERS = 1 << 1
    GUILD_MODERATION = 1 << 2
    GUILD_EXPRESSIONS = 1 << 3
    GUILD_INTEGRATIONS = 1 << 4
    GUILD_WEBHOOKS = 1 << 5
    GUILD_INVITES = 1 << 6
    GUILD_VOICE_STATES = 1 << 7
    GUILD_PRESENCES = 1 << 8
    GUILD_MESSAGES = 1 << 9
    GUILD_MESSAGE_REACTIONS = 1 << 10
    GUILD_MESSAGE_TYPING = 1 << 11
    DIRECT_MESSAGES = 1 << 12
    DIRECT_MESSAGE_REACTIONS = 1 << 13
    DIRECT_MESSAGE_TYPING = 1 << 14
    MESSAGE_CONTENT = 1 << 15
    GUILD_SCHEDULED_EVENTS = 1 << 16
    AUTO_MODERATION_CONFIGURATION = 1 << 20
    AUTO_MODERATION_EXECUTION = 1 << 21
    GUILD_MESSAGE_POLLS = 1 << 24
    DIRECT_MESSAGE_POLLS = 1 << 25


KNOWN = Intent(sum(Intent))
PRIVILEGED = Intent.GUILD_MEMBERS | Intent.GUILD_PRESENCES | Intent.MESSAGE_CONTENT

_MESSAGES = ("MESSAGE_CREATE", "MESSAGE_UPDATE", "MESSAGE_DELETE")
_OF_MEMBERS = ("GUILD_MEMBER_ADD", "GUILD_MEMBER_REMOVE", "GUILD_MEMBER_UPDATE")
_SEEN_ONLY = (*_MESSAGES, "TYPING_START", "THREAD_CREATE", "THREAD_UPDATE", "THREAD_DELETE")
_CONTENT: Json = {"content": "", "embeds": [], "attachments": [], "components": []}


def is_on_shard(news: News, shard: tuple[int, int]) -> bool:
    """Whether the news belong to a shard: direct messages are the first one's."""
    number, of = shard
    return number == (0 if news.guild is None else (int(news.guild.id) >> 22) % of)


def as_told(news: News, intents: Intent, bot_id: str) -> Json | None:
    """What a session with these intents is told of some news; None for nothing."""
    needed = _needed(news, bot_id)
    if needed is not None and needed not in intents:
        return None
    if news.guild is not None and bot_id not in news.guild.members:
        return None
    if news.channel is not None and _must_see(news, bot_id) and not may_view(news.channel, bot_id):
        return None
    if news.name in _MESSAGES[:2]:
        in_full = news.guild is None or Intent.MESSAGE_CONTENT in intents
        return news.data if in_full else readable(news.data, bot_id)
    if news.name == "GUILD_CREATE" and Intent.GUILD_PRESENCES not in intents:
        own = [each for each in news.data["members"] if each["user"]["id"] == bot_id]
        return {**news.data, "members": own}
    return news.data


def readable(message: Json, bot_id: str) -> Json:
    """A guild's message to an app without the intent: content only where it concerns the app."""
    mentioned = any(each["id"] == bot_id for each in message["mentions"])
    shown = message if mentioned or message["author"]["id"] == bot_id else message | _CONTENT
    quoted = shown.get("referenced_message")
    if quoted is None:
        return shown
    return shown | {"referenced_message": readable(quoted, bot_id)}


def _needed(news: News, bot_id: str) -> Intent | None:
    name, direct = news.name, news.guild is None
    if name in _MESSAGES:
        return Intent.DIRECT_MESSAGES if direct else Intent.GUILD_MESSAGES
    if name == "TYPING_START":
        return Intent.DIRECT_MESSAGE_TYPING if direct else Intent.GUILD_MESSAGE_TYPING
    if name == "GUILD_MEMBER_UPDATE" and news.about == bot_id:
        return None
    if name in _OF_MEMBERS or (name == "THREAD_MEMBERS_UPDATE" and news.about != bot_id):
        return Intent.GUILD_MEMBERS
    if name.startswith(("GUILD_", "CHANNEL_", "THREAD_")):
        return Intent.GUILDS
    return None


def _must_see(news: News, bot_id: str) -> bool:
    if news.name == "THREAD_MEMBERS_UPDATE":
        return news.about != bot_id
    return news.name in _SEEN_ONLY
