"""Settings of every platform, one class each, and the secrets that they give or name files of.

Apart from the platforms, so that reading the settings loads none of them.
"""

from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from accord.kernel.section import Section
from accord.relay.errors import Code, RelayError

if TYPE_CHECKING:
    from accord.web.outgoing import OutgoingPolicy


_MAX_SECRET_BYTES = 64 * 1024
_DAY = 86_400.0
_MiB = 1 << 20
_GiB = 1 << 30
_Number = Annotated[int, Field(ge=0)]
Invites = Literal["anyone", "nobody", "server"]
_EMPTY = SecretStr("")
MOST_SHARDS = 1024


def resolve_secret(value: SecretStr, file: str, where: str) -> SecretStr:
    """The secret of a setting, given directly or by a file.

    `where` names the setting in errors.

    Raises:
        RelayError: There is none, there are two, or the file cannot be read.
    """
    if value.get_secret_value():
        if not file:
            return value
        raise _bad_secret(
            "the secret is given twice", where, f"keep one of {where} and {where}_file"
        )
    if not file:
        raise _bad_secret(
            "a secret is missing", where, f"set {where}, or {where}_file to a file of it"
        )
    return read_secret_file(file, f"{where}_file")


def read_secret_file(file: str, where: str) -> SecretStr:
    """The secret in the file of a setting, stripped; raises RelayError if there is none."""
    try:
        with Path(file).expanduser().open("rb") as opened:
            text = opened.read(_MAX_SECRET_BYTES).decode("utf-8").strip()
    except OSError as error:
        raise _bad_secret(
            f"a secret's file cannot be read ({error.strerror})", where, "correct it"
        ) from None
    except UnicodeDecodeError:
        raise _bad_secret("a secret's file is no text", where, "correct it") from None
    if not text:
        raise _bad_secret("a secret's file is empty", where, "write the secret into it")
    return SecretStr(text)


def _bad_secret(what: str, where: str, mend: str) -> RelayError:
    return RelayError(Code.BAD_REQUEST, what, where=where, mend=mend)


# The limits that all platforms have, with the words that describe them in every table.
CallSeconds = Annotated[
    float, Field(gt=0, le=600, description="how long a request to the service may take in all")
]
SilentSeconds = Annotated[
    float, Field(gt=0, le=600, description="how long the service may be silent within a request")
]
ConnectSeconds = Annotated[
    float, Field(gt=0, le=600, description="how long it may take to connect to the service")
]
RateWaitSeconds = Annotated[
    float,
    Field(
        ge=0,
        le=600,
        description="the longest wait that a service may ask for before an action waits in the "
        "outbox instead",
    ),
]
RateTries = Annotated[
    int, Field(ge=1, le=20, description="how often a request is sent that meets a rate limit")
]
RateDefaultSeconds = Annotated[
    float, Field(gt=0, le=600, description="the wait after a rate limit that names none")
]
PauseSeconds = Annotated[
    float,
    Field(
        gt=0,
        le=3600,
        description="the longest pause between two attempts to reach a service; pauses double up "
        "to it",
    ),
]
WatchSeconds = Annotated[
    float,
    Field(gt=0, le=_DAY, description="how often a service that calls us is asked whether it works"),
]
ToleranceSeconds = Annotated[
    float,
    Field(
        gt=0,
        le=3600,
        description="how far the signed time of a request may be from ours; longer lets old "
        "requests be repeated",
    ),
]
BodyBytes = Annotated[
    int,
    Field(ge=1024, le=_GiB, description="the longest body that a service may post to us"),
]
BodySeconds = Annotated[
    float, Field(gt=0, le=600, description="how long the body of a request to us may take")
]
AnswerBytes = Annotated[
    int, Field(ge=1024, le=_GiB, description="the longest answer of a service that is read")
]


class PlatformLimits(Section):
    """`[platforms]`: limits of all platforms.

    The table of a bot may set those that it has, too; where neither is set, its default counts.
    """

    call_seconds: CallSeconds = 10.0
    silent_seconds: SilentSeconds = 10.0
    connect_seconds: ConnectSeconds = 5.0
    rate_wait_seconds: RateWaitSeconds = 5.0
    rate_tries: RateTries = 2
    rate_default_seconds: RateDefaultSeconds = 1.0
    pause_seconds: PauseSeconds = 60.0
    watch_seconds: WatchSeconds = 300.0
    tolerance_seconds: ToleranceSeconds = 300.0
    body_bytes: BodyBytes = 65_536
    body_seconds: BodySeconds = 10.0
    answer_bytes: AnswerBytes = 65_536

    def of(self, bot: Section) -> "PlatformLimits":
        """The limits of one bot: what its table sets, else what is set here, else its defaults."""
        own = (type(bot).model_fields.keys() - self.model_fields_set) | bot.model_fields_set
        names = type(self).model_fields.keys() & own
        return self.model_copy(update={name: getattr(bot, name) for name in names})


DEFAULT_LIMITS = PlatformLimits()


class CommandSettings(Section):
    """Whose commands the menu of a bot shows, which all its agents share."""

    commands: Literal["off", "pinned", "union"] = Field(
        default="off",
        description="`off` leaves the bot's menu of commands as it is; `pinned` shows those of "
        "`commands_file`; `union` adds those that the gateways of `commands_from` declare",
    )
    commands_file: str = Field(
        default="",
        description="a JSON file with a list of commands (name, description, options), which win "
        "over those of gateways",
    )
    commands_from: tuple[str, ...] = Field(
        default=(), max_length=100, description="instances whose gateways may add commands"
    )
    commands_settle_seconds: float = Field(
        default=2.0,
        ge=0,
        le=600,
        description="how long a change of the menu waits for others, since agents come back one "
        "by one after a restart",
    )
    commands_pause_seconds: float = Field(
        default=5.0, gt=0, le=3600, description="the first pause after a menu was not taken"
    )
    commands_longest_pause_seconds: float = Field(
        default=300.0, gt=0, le=_DAY, description="the longest such pause; pauses double up to it"
    )

    @model_validator(mode="after")
    def _has_commands(self) -> Self:
        if self.commands == "pinned" and not self.commands_file:
            raise ValueError('commands = "pinned" needs commands_file')
        if self.commands == "union" and not self.commands_from:
            raise ValueError('commands = "union" needs the instances in commands_from')
        if self.commands_pause_seconds > self.commands_longest_pause_seconds:
            raise ValueError(
                "commands_pause_seconds should not exceed commands_longest_pause_seconds"
            )
        return self


class DiscordSettings(CommandSettings):
    """One bot on Discord."""

    application_id: str = Field(
        pattern=r"^[0-9]{1,20}$",
        description="the application's id, which is also its bot's; General Information shows it",
    )
    token: SecretStr = Field(default=SecretStr(""), description="the bot's token")
    token_file: str = Field(
        default="", description="a file with the bot's token, instead of the token"
    )
    public_key: str = Field(
        default="",
        pattern=r"^([0-9a-fA-F]{64})?$",
        description="the application's public key, by which interactions are verified that Discord "
        "posts to the station; empty where it posts none",
    )
    shard: tuple[_Number, Annotated[int, Field(ge=1)]] = Field(
        default=(0, 1),
        description="the one shard that this station listens to, and how many there are; by "
        "default all connectors share all shards",
    )
    shards: int = Field(
        default=0,
        ge=0,
        le=MOST_SHARDS,
        description="how many shards the bot has; 0 asks Discord",
    )
    message_content: bool = Field(
        default=True,
        description="whether to ask for what people write where they do not mention the bot: a "
        "privileged intent",
    )
    member_events: bool = Field(
        default=False,
        description="whether to ask to be told when somebody's roles change: a privileged intent. "
        "Without it a role that was taken away counts for up to half a minute",
    )
    mentions: tuple[Literal["users", "roles", "everyone"], ...] = Field(
        default=(), description="whom a mention in an agent's text may notify"
    )
    backfill_hours: float = Field(
        default=24.0,
        ge=0,
        le=24 * 14,
        description="how old a message may be that is fetched after the session was lost",
    )
    api_url: str = Field(
        default="https://discord.com/api/v10",
        pattern=r"^https?://[^\s?#@]+$",
        description="where Discord's API is",
    )
    pause_seconds: PauseSeconds = 30.0
    body_bytes: BodyBytes = 256 * 1024
    answer_bytes: AnswerBytes = 8 * _MiB
    repeat_seconds: float = Field(
        default=0.5,
        gt=0,
        le=60,
        description="the pause before a request is repeated that Discord failed at",
    )
    reply_seconds: float = Field(
        default=2.5,
        gt=0,
        lt=3,
        description="how long storing an interaction may take; Discord waits for three seconds",
    )
    open_seconds: float = Field(
        default=10.0, gt=0, le=600, description="how long opening a gateway connection may take"
    )
    checkpoint_seconds: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="how often the position in the session is stored; what comes after it is "
        "read again after a crash",
    )
    greeting_seconds: float = Field(
        default=30.0, gt=0, le=600, description="how long the gateway may take to begin a session"
    )
    missed_heartbeats: int = Field(
        default=0,
        ge=0,
        le=10,
        description="how many heartbeats in a row Discord may leave unanswered before the "
        "connection is made anew",
    )
    payload_bytes: int = Field(
        default=32 * _MiB,
        ge=64 * 1024,
        le=_GiB,
        description="the longest payload of the gateway, and how much of them may wait",
    )
    dispatches: int = Field(
        default=256,
        ge=1,
        le=100_000,
        description="how many events of one shard are handled at the same time",
    )
    catch_up_channels: int = Field(
        default=8,
        ge=1,
        le=1000,
        description="how many channels of a server are read at the same time after the session "
        "was lost",
    )
    catch_up_guilds: int = Field(
        default=4,
        ge=1,
        le=100,
        description="how many servers of one shard are read so at the same time; the others' new "
        "messages do not wait for them",
    )
    catch_up_page: int = Field(
        default=100, ge=1, le=100, description="how many missed messages one request asks for"
    )
    catch_up_wait_seconds: float = Field(
        default=60.0,
        ge=0,
        le=3600,
        description="the longest rate limit that is waited for while missed messages are read",
    )
    fact_seconds: float = Field(
        default=10.0,
        ge=0,
        le=3600,
        description="how long servers and channels are believed to be as they were last read",
    )
    lookup_wait_seconds: float = Field(
        default=2.0,
        ge=0,
        le=600,
        description="the longest rate limit that is waited for while permissions are looked up",
    )

    @model_validator(mode="after")
    def _is_one_of_the_shards(self) -> Self:
        if self.shard[0] >= self.shard[1]:
            raise ValueError("shards are numbered from 0, so the number is less than the count")
        if self.shard[1] > 1 and self.shards:
            raise ValueError("shard names one shard of several, so shards does not go with it")
        return self


class MatrixSettings(Section):
    """One bot on Matrix."""

    homeserver: str = Field(
        pattern=r"^https?://[^\s/]+(/[^\s?#]*)?$",
        description="the address of the homeserver's client interface: https://matrix.example.org",
    )
    user_id: str = Field(
        pattern=r"^@[a-zA-Z0-9._=/+-]{1,128}:[a-zA-Z0-9.:\[\]-]{1,230}$",
        description="who the bot is there: @agent:example.org",
    )
    access_token: SecretStr = Field(
        default=SecretStr(""),
        description="the bot's access token; of an application service, its as_token",
    )
    access_token_file: str = Field(default="", description="a file that holds the access token")
    mode: Literal["sync", "appservice"] = Field(
        default="sync",
        description="whether the bot asks for news, or is an application service that is told",
    )
    hs_token: SecretStr = Field(
        default=SecretStr(""),
        description="what the homeserver proves itself by; for an application service only",
    )
    hs_token_file: str = Field(default="", description="a file that holds the hs_token")
    invites: Invites | tuple[str, ...] = Field(
        default="server",
        description=(
            "whose invitations are accepted: anyone's, nobody's, those of users of the bot's own"
            " server, or of a list of user ids and servers"
        ),
    )
    notices: bool = Field(
        default=False,
        description="whether answers are notices, which notify nobody and no other bot answers",
    )
    sync_seconds: int = Field(
        default=30, ge=0, le=120, description="how long the homeserver may wait for news"
    )
    silent_seconds: SilentSeconds = 20.0
    connect_seconds: ConnectSeconds = 20.0
    rate_tries: RateTries = 4
    body_bytes: BodyBytes = 16 * _MiB
    body_seconds: BodySeconds = 30.0
    answer_bytes: AnswerBytes = 64 * _MiB
    sync_slack_seconds: float = Field(
        default=20.0,
        gt=0,
        le=600,
        description="how much later than `sync_seconds` the homeserver may answer",
    )
    send_seconds: float = Field(
        default=12.0,
        gt=0,
        le=600,
        description="how long the homeserver may be silent about a message; then it is sent once "
        "more",
    )
    join_seconds: float = Field(
        default=30.0, gt=0, le=600, description="how long joining a room may take"
    )
    listen_wait_seconds: float = Field(
        default=600.0,
        ge=0,
        le=_DAY,
        description="the longest rate limit that is waited for while listening",
    )
    page: int = Field(
        default=200, ge=1, le=1000, description="how many missed events one request asks for"
    )
    shown: int = Field(
        default=50,
        ge=1,
        le=1000,
        description="how many events of one room a sync shows; further ones are asked for",
    )
    pages_back: int = Field(
        default=10,
        ge=1,
        le=1000,
        description="how many such requests look for what was written since the bot was invited",
    )
    invites_at_once: int = Field(
        default=8, ge=1, le=100, description="how many invitations are answered at the same time"
    )
    rooms: int = Field(
        default=1000, ge=1, le=1_000_000, description="how many rooms' states are kept in memory"
    )
    room_seconds: float = Field(
        default=5.0,
        ge=0,
        le=3600,
        description="how long an application service believes a room's state that it has read",
    )
    typing_seconds: float = Field(
        default=20.0, gt=0, le=300, description="how long the bot is shown as typing"
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        has_hs_token = bool(self.hs_token.get_secret_value() or self.hs_token_file)
        if has_hs_token != (self.mode == "appservice"):
            raise ValueError("an application service, and nothing else, has an hs_token")
        return self


class SmsSettings(Section):
    """`[[relay.sms]]`: a phone number at Twilio that agents answer text messages by."""

    account_sid: Annotated[
        str, Field(pattern=r"^AC[0-9a-fA-F]{32}$", description="the account's SID, AC...")
    ]
    phone_number: Annotated[
        str, Field(pattern=r"^\+?[1-9][0-9]{2,14}$", description="the number, such as +15005550006")
    ]
    auth_token: Annotated[SecretStr, Field(description="the account's auth token")] = SecretStr("")
    auth_token_file: Annotated[str, Field(description="a file with the auth token instead")] = ""
    api_url: Annotated[
        str, Field(pattern=r"^https?://[^\s/]", description="where Twilio's API is")
    ] = "https://api.twilio.com"
    media: Annotated[
        int, Field(ge=0, le=100, description="how many media of one message are passed on")
    ] = 10


class TelegramSettings(CommandSettings):
    """One bot on Telegram."""

    token: SecretStr = Field(
        default=SecretStr(""), description="the bot's token, as BotFather gave it"
    )
    token_file: str = Field(
        default="", description="a file with the token, in place of the token itself"
    )
    mode: Literal["poll", "webhook"] = Field(
        default="poll",
        description="whether the connector asks Telegram for news, or is called by Telegram",
    )
    api_url: str = Field(
        default="https://api.telegram.org",
        pattern=r"^https?://[^\s?#]+$",
        description="where the Bot API is; another one is a Bot API server of your own",
    )
    drafts: bool = Field(
        default=False,
        description="whether an answer in a private chat is shown as a draft while it grows",
    )
    poll_seconds: int = Field(
        default=25, ge=1, le=50, description="how long Telegram may keep a question for news open"
    )
    page: int = Field(
        default=100, ge=1, le=100, description="how many updates one question asks for"
    )
    commands_settle_seconds: float = Field(
        default=1.0,
        ge=0,
        le=600,
        description="how long a change of the menu waits for others",
    )
    call_seconds: CallSeconds = 20.0
    connect_seconds: ConnectSeconds = 10.0
    pause_seconds: PauseSeconds = 30.0
    watch_seconds: WatchSeconds = 60.0
    body_bytes: BodyBytes = _MiB
    answer_bytes: AnswerBytes = 8 * _MiB


class WebhookSettings(Section):
    """`[[relay.webhook]]`: a program of yours that speaks for people by signed webhooks."""

    name: Annotated[
        str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$", description="its name, and its route key")
    ]
    secret: Annotated[
        SecretStr, Field(description="whsec_ or whpk_ keys that prove what comes in")
    ] = SecretStr("")
    secret_file: Annotated[str, Field(description="a file with these keys instead")] = ""
    url: Annotated[
        str, Field(max_length=2048, description="where agents' actions are posted; empty for none")
    ] = ""
    send_secret: Annotated[
        SecretStr, Field(description="whsec_ or whsk_ keys that sign what goes out")
    ] = SecretStr("")
    send_secret_file: Annotated[str, Field(description="a file with these keys instead")] = ""
    edits: Annotated[bool, Field(description="the receiver can change messages")] = False
    silent_seconds: SilentSeconds = 5.0
    deduplicates: Annotated[
        bool, Field(description="the receiver does nothing twice for one webhook-id")
    ] = False
    max_message_length: Annotated[
        int, Field(ge=64, le=16_000, description="how long one message may be, in characters")
    ] = 4096
    markdown: Annotated[bool, Field(description="the receiver shows Markdown")] = True
    managers: Annotated[
        tuple[str, ...], Field(max_length=100, description="user ids that may claim its chats")
    ] = ()
    open_chats: Annotated[
        bool, Field(description="every user may view every chat of it that is not a dm")
    ] = False
    allow_http: Annotated[bool, Field(description="let the URL be plain `http`")] = False
    ports: Annotated[
        tuple[Annotated[int, Field(ge=1, le=65535)], ...],
        Field(max_length=64, description="ports that the URL may name besides 443"),
    ] = ()
    networks: Annotated[
        tuple[str, ...],
        Field(max_length=64, description="private ranges that the URL may lead to"),
    ] = ()

    @field_validator("networks")
    @classmethod
    def _ranges_are_ranges(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            ip_network(network)
        return networks

    @property
    def outgoing(self) -> "OutgoingPolicy":
        """Where the URL may lead."""
        from accord.web.outgoing import OutgoingPolicy

        return OutgoingPolicy(
            http=self.allow_http,
            ports=frozenset(self.ports),
            networks=tuple(map(ip_network, self.networks)),
        )


class WecomSettings(Section):
    """`[[relay.wecom]]`: an application of a corporation in WeCom that agents answer by."""

    corp_id: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="the corporation's id, ww...")
    ]
    agent_id: Annotated[int, Field(ge=1, lt=2**31, description="the application's AgentId")]
    secret: Annotated[SecretStr, Field(description="the application's Secret")] = _EMPTY
    secret_file: Annotated[str, Field(description="a file with the Secret instead")] = ""
    token: Annotated[SecretStr, Field(description="the Token of its API reception")] = _EMPTY
    token_file: Annotated[str, Field(description="a file with the Token instead")] = ""
    encoding_aes_key: Annotated[
        SecretStr, Field(description="the EncodingAESKey of its API reception")
    ] = _EMPTY
    encoding_aes_key_file: Annotated[
        str, Field(description="a file with the EncodingAESKey instead")
    ] = ""
    api_url: Annotated[
        str, Field(pattern=r"^https?://[^\s/]", description="where WeCom's API is")
    ] = "https://qyapi.weixin.qq.com"
    token_early_seconds: Annotated[
        float,
        Field(
            ge=0,
            le=7000,
            description="how long before its end an access token is replaced by a new one",
        ),
    ] = 300.0


class WebChatLimits(Section):
    """`[webchat]`: limits of the built-in web chat."""

    bot: Annotated[
        str,
        Field(
            min_length=1,
            max_length=32,
            description="the name of the bot that the first start makes",
        ),
    ] = "accord"
    invite_seconds: Annotated[
        int, Field(ge=60, le=366 * 86_400, description="how long an invitation can be used")
    ] = 7 * 86_400
    session_seconds: Annotated[
        int, Field(ge=60, le=10 * 366 * 86_400, description="how long a browser stays logged in")
    ] = 30 * 86_400
    sessions_per_user: Annotated[
        int, Field(ge=1, le=1000, description="in how many browsers one user is logged in")
    ] = 20
    posts_per_minute: Annotated[
        int,
        Field(
            ge=1,
            le=1_000_000,
            description="how many messages and edits one user may send in the long run",
        ),
    ] = 60
    requests_per_minute: Annotated[
        int,
        Field(ge=1, le=1_000_000, description="how many other requests one user may send"),
    ] = 600
    entries_per_minute: Annotated[
        int,
        Field(ge=1, le=1_000_000, description="how often one address may try to join or log in"),
    ] = 20
    streams_per_user: Annotated[
        int, Field(ge=1, le=10_000, description="how many pages of one user are told live")
    ] = 8
    streams: Annotated[
        int,
        Field(ge=1, le=1_000_000, description="how many pages one process tells live in all"),
    ] = 2000
    alive_seconds: Annotated[
        float,
        Field(gt=0, le=600, description="how often a page that is told nothing is sent a sign"),
    ] = 15.0
    poll_seconds: Annotated[
        float,
        Field(
            gt=0,
            le=60,
            description="how often news of other processes on the same store are looked for",
        ),
    ] = 0.5
    page: Annotated[
        int, Field(ge=1, le=500, description="how many messages one request for older ones gets")
    ] = 50
    typing_seconds: Annotated[
        float, Field(gt=0, le=300, description="how long somebody is shown as typing")
    ] = 6.0


class WebChatSettings(WebChatLimits):
    """What a web chat is given: its limits, and its address."""

    # Under which address people reach the chat, such as `https://chat.example`; empty for the one
    # by which they came. Behind a proxy that ends TLS it must be given, or the session cookie is
    # not marked `Secure`.
    base_url: str = ""
