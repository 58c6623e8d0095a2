"""Whatever reaches the readers behind the three webhooks: a value or a refusal, nothing else."""

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from accord.relay.errors import RelayError
from accord.relay.platforms import sms, webhook, wecom
from accord.relay.platforms.base import json_object

KEYS = webhook.read_keys("whsec_" + "A" * 43 + "=", "secret")
CRYPT = wecom.read_crypt("token", "A" * 43, "ww1")
XML = st.lists(
    st.sampled_from(
        [
            b"<xml>",
            b"</xml>",
            b"<a>",
            b"</a>",
            b"<![CDATA[",
            b"]]>",
            b"&lt;",
            b"&x;",
            b"\xff",
            b"<!--",
        ]
    )
).map(b"".join)
TEXTS = st.text(max_size=20)
WECOM = ["FromUserName", "MsgType", "MsgId", "Content", "Event", "EventKey", "AgentID", "PicUrl"]
SMS = ["MessageSid", "From", "To", "AccountSid", "Body", "NumMedia", "MediaUrl0"]
HOOK = ["chat_id", "user_id", "text", "chat_type", "thread_id", "media_urls", "is_bot"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS | st.sampled_from(["dm", "group"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def refused_or_read(read: Callable[..., Any], *given: Any) -> None:
    try:
        read(*given)
    except RelayError as error:
        assert str(error)


@given(st.binary(max_size=300) | XML)
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    for read in (wecom.read_xml, sms.read_form, sms.read_json, json_object):
        refused_or_read(read, raw)


@given(st.text(max_size=80), st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str, other: str) -> None:
    refused_or_read(CRYPT.open, text)
    refused_or_read(webhook.read_keys, text, "secret")
    refused_or_read(webhook.read_keys, "whsec_" + text, "secret")
    refused_or_read(wecom.read_crypt, "token", text, "ww1")
    assert not CRYPT.is_signed(text, other, other, text)
    assert not KEYS.is_signed(other, other, text.encode("utf-8", "surrogatepass"), "v1," + text)
    refused_or_read(webhook.read_chat_id, "desk", "desk/" + text)
    assert wecom.user_of_chat("ww1", text) is None


@given(st.dictionaries(st.sampled_from(SMS), st.lists(TEXTS, min_size=1, max_size=2)))
def test_any_form_is_a_message_or_refused(form: dict[str, list[str]]) -> None:
    refused_or_read(sms.message_inbound, form, "AC", "+1")
    right = {"MessageSid": ["SM"], "From": ["+2"], "To": ["+1"], "AccountSid": ["AC"]}
    refused_or_read(sms.message_inbound, form | right, "AC", "+1")


@given(st.dictionaries(st.sampled_from(WECOM), TEXTS | st.sampled_from(["text", "event", "click"])))
def test_any_fields_are_a_message_or_refused(fields: dict[str, str]) -> None:
    refused_or_read(wecom.message_inbound, fields, "ww1", 7)


@given(st.dictionaries(st.sampled_from(HOOK), JSON))
def test_any_object_is_a_message_or_refused(body: dict[str, Any]) -> None:
    refused_or_read(webhook.message_inbound, body, "desk", "e1")
    refused_or_read(
        webhook.message_inbound, {"chat_id": "c", "user_id": "u", "text": ""} | body, "d", "e"
    )
