"""Twilio's signature, and how many segments a text message takes. Pure.

The signature is HMAC-SHA1 over the URL as Twilio saw it and the sorted parameters; a JSON body is
signed by its hash. GSM 03.38 has one septet for each character of its alphabet and two for those of
its extension; a text with any other character is sent as UCS-2.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, urlsplit

_BASIC: Final = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
_EXTENSION: Final = frozenset("\f^{}\\[~]|€")
_GSM: Final = (160, 153)
_UCS: Final = (70, 67)
Fields = Mapping[str, Sequence[str]]
"""The parameters of a form, each with its values in order."""
_PORTS: Final = {"https": 443, "http": 80}
_MOST_FIELDS: Final = 100


@dataclass(frozen=True, slots=True)
class Segments:
    """The encoding of a text message, `GSM-7` or `UCS-2`, and how many segments it takes."""

    encoding: str
    count: int


def segments(text: str) -> Segments:
    """The segments of a text; an empty one takes one."""
    if all(each in _BASIC or each in _EXTENSION for each in text):
        return Segments("GSM-7", _count([2 if each in _EXTENSION else 1 for each in text], *_GSM))
    return Segments("UCS-2", _count([2 if each > "\uffff" else 1 for each in text], *_UCS))


def _count(widths: list[int], alone: int, among: int) -> int:
    if sum(widths) <= alone:
        return 1
    count, room = 1, among
    for width in widths:
        if width > room:
            count, room = count + 1, among
        room -= width
    return count


def sign(url: str, fields: Fields, token: str) -> str:
    """The signature of a request with a form; for JSON, `fields` is empty."""
    signed = [url]
    for name in sorted(fields):
        signed += [name + value for value in sorted(set(fields[name]))]
    return _mac("".join(signed), token)


def is_signed(url: str, fields: Fields, signature: str, token: str) -> bool:
    """Whether a request with a form is signed, with or without a port in its URL."""
    given = signature.encode("utf-8", "replace")
    # Twilio sometimes leaves a port out and sometimes adds the usual one.
    found = [
        hmac.compare_digest(sign(each, fields, token).encode(), given) for each in _spellings(url)
    ]
    return any(found)


def is_signed_json(url: str, body: bytes, signature: str, token: str) -> bool:
    """Whether a request with JSON is signed: its URL, which has the hash of its body."""
    try:
        query = parse_qs(urlsplit(url).query, max_num_fields=_MOST_FIELDS)
    except ValueError:
        return False
    named = query.get("bodySHA256", [""])[0].encode("utf-8", "replace")
    is_body = hmac.compare_digest(hashlib.sha256(body).hexdigest().encode(), named)
    return is_signed(url, {}, signature, token) and is_body


def _spellings(url: str) -> tuple[str, ...]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return ()
    bare = parts.netloc.removesuffix(f":{port}")
    usual = port or _PORTS.get(parts.scheme, 80)
    tail = url[len(parts.scheme) + len("://") + len(parts.netloc) :]
    return tuple(f"{parts.scheme}://{each}{tail}" for each in (bare, f"{bare}:{usual}"))


def _mac(text: str, token: str) -> str:
    mac = hmac.new(token.encode(), text.encode("utf-8", "replace"), hashlib.sha1)
    return base64.b64encode(mac.digest()).decode()
