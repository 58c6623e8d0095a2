"""What Twilio posts about text messages: read strictly, and normalised.

It does no I/O. A message is named by its `MessageSid`. The chat is the person's number, and always
a direct one; whether a machine wrote a text message cannot be known.
"""

from typing import Final
from urllib.parse import parse_qsl

from accord.relay.connector.platform import Inbound
from accord.relay.platforms.edge import json_object, spoken
from accord.relay.platforms.sms.signature import Fields
from accord.relay.wire.event import MessageEvent, MessageType
from accord.relay.wire.members import bad
from accord.relay.wire.source import SessionSource

PLATFORM: Final = "sms"
_MOST_FIELDS: Final = 200
_MOST_MEDIA: Final = 10
_KINDS: Final = {
    "image": MessageType.PHOTO,
    "video": MessageType.VIDEO,
    "audio": MessageType.AUDIO,
}


def read_form(raw: bytes) -> Fields:
    """The parameters of a form.

    Raises:
        RelayError: It is not one in UTF-8, or has too many parameters.
    """
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
    """The texts of a JSON object, as if they were a form's.

    Raises:
        RelayError: It is not an object in strict JSON.
    """
    return {name: [each] for name, each in json_object(raw).items() if isinstance(each, str)}


def one(fields: Fields, name: str) -> str:
    """A parameter that is given at most once; empty where it is missing.

    Raises:
        RelayError: It is given more often.
    """
    values = fields.get(name, ("",))
    if len(values) != 1:
        raise bad("this parameter is given more than once", where=name)
    return values[0]


def normalise(fields: Fields, account: str, number: str) -> Inbound | None:
    """A message as the connector takes it; None for one that the number sent to itself.

    Args:
        fields: What was posted.
        account: The account's SID.
        number: The bot's phone number.

    Raises:
        RelayError: It is no message to this number.
    """
    sid, sender = one(fields, "MessageSid"), one(fields, "From")
    if not sid or not sender:
        raise bad("a text message has MessageSid and From")
    if (one(fields, "AccountSid"), one(fields, "To")) != (account, number):
        raise bad("this message is to another account or number")
    if sender == number:
        return None
    text = one(fields, "Body")
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
    return Inbound(PLATFORM, number, sid, event, kind=spoken(text), addressed=True)


def _media(fields: Fields) -> tuple[str, ...]:
    count = one(fields, "NumMedia")
    if not (count.isascii() and count.isdecimal() and len(count) < 4):
        return ()
    urls = (one(fields, f"MediaUrl{number}") for number in range(min(int(count), _MOST_MEDIA)))
    return tuple(each for each in urls if each.startswith(("https://", "http://")))


def _kind(fields: Fields, media: tuple[str, ...]) -> MessageType:
    if not media:
        return MessageType.TEXT
    return _KINDS.get(one(fields, "MediaContentType0").partition("/")[0], MessageType.DOCUMENT)
