"""Text messages that Twilio posts, as inbound events.

The event id is the `MessageSid`. The chat is the sender's number, and always a direct one;
whether a machine wrote it is unknown.
"""

from typing import Final
from urllib.parse import parse_qsl

from accord.relay.connector.platform import InboundEvent
from accord.relay.platforms.base import inbound_kind, json_object
from accord.relay.platforms.sms.rules import Fields
from accord.relay.rules.members import bad
from accord.relay.rules.messages import MessageEvent, MessageType, SessionSource

PLATFORM: Final = "sms"
_MOST_FIELDS: Final = 200
_MOST_MEDIA: Final = 10
_KINDS: Final = {
    "image": MessageType.PHOTO,
    "video": MessageType.VIDEO,
    "audio": MessageType.AUDIO,
}


def read_form(raw: bytes) -> Fields:
    """The parameters of a form; raises RelayError if it is none in UTF-8, or too long."""
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError:
        raise bad(f"the body is no form in UTF-8 with at most {_MOST_FIELDS} parameters") from None
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return fields


def read_json(raw: bytes) -> Fields:
    """The strings of a JSON object, in the shape of a form; raises RelayError if it is none."""
    return {name: [each] for name, each in json_object(raw).items() if isinstance(each, str)}


def single_field(fields: Fields, name: str) -> str:
    """A parameter, empty if missing; raises RelayError if it is given more than once."""
    values = fields.get(name, ("",))
    if len(values) != 1:
        raise bad("this parameter is given more than once", where=name)
    return values[0]


def message_inbound(fields: Fields, account: str, number: str) -> InboundEvent | None:
    """The inbound event of a message; None for one that the number sent to itself."""
    sid, sender = single_field(fields, "MessageSid"), single_field(fields, "From")
    if not sid or not sender:
        raise bad("a text message has MessageSid and From")
    if (single_field(fields, "AccountSid"), single_field(fields, "To")) != (account, number):
        raise bad("this message is to another account or number")
    if sender == number:
        return None
    text = single_field(fields, "Body")
    media = _media(fields)
    source = SessionSource(
        platform=PLATFORM,
        chat_id=sender,
        chat_type="dm",
        chat_name=sender,
        user_id=sender,
        message_id=sid,
    )
    event = MessageEvent(
        text, source, _kind(fields, media), message_id=sid, media_urls=media, bot_id=number
    )
    return InboundEvent(PLATFORM, number, sid, event, kind=inbound_kind(text), addressed=True)


def _media(fields: Fields) -> tuple[str, ...]:
    count = single_field(fields, "NumMedia")
    if not (count.isascii() and count.isdecimal() and len(count) < 4):
        return ()
    urls = (
        single_field(fields, f"MediaUrl{number}") for number in range(min(int(count), _MOST_MEDIA))
    )
    return tuple(each for each in urls if each.startswith(("https://", "http://")))


def _kind(fields: Fields, media: tuple[str, ...]) -> MessageType:
    if not media:
        return MessageType.TEXT
    return _KINDS.get(
        single_field(fields, "MediaContentType0").partition("/")[0], MessageType.DOCUMENT
    )
