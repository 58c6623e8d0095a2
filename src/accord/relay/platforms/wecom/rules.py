"""BizMsgCrypt, by which WeCom signs and encrypts callbacks, and the XML in them. Pure.

The signature is the SHA-1 of token, timestamp, nonce and ciphertext, sorted; encrypted by
AES-256-CBC are 16 random bytes, the length, the message and the receiver's id. XML with a document
type is refused before anything in it is read.
"""

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Any, Final
from xml.parsers import expat

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from accord.relay.errors import Code, RelayError
from accord.relay.rules.members import bad

_KEY: Final = re.compile(r"[A-Za-z0-9+/]{43}")
_BLOCK: Final = 32
_AES: Final = 16
_SALT_BYTES: Final = 16
_LENGTH: Final = 4
_ROOT: Final = "xml"
_DEEPEST: Final = 16
_MAX_TEXT: Final = 500


@dataclass(frozen=True, slots=True)
class BizMsgCrypt:
    """What an application shares with WeCom; `repr` does not show it.

    `receiver` is the corporation's id, `key` has 32 bytes.
    """

    token: str
    key: bytes
    receiver: str

    def __repr__(self) -> str:
        return f"Crypt(receiver={self.receiver!r})"

    def sign(self, timestamp: str, nonce: str, sealed: str) -> str:
        """The signature of an encrypted message."""
        parts = sorted(each.encode() for each in (self.token, timestamp, nonce, sealed))
        return hashlib.sha1(b"".join(parts), usedforsecurity=False).hexdigest()

    def is_signed(self, signature: str, timestamp: str, nonce: str, sealed: str) -> bool:
        """Whether an encrypted message is signed by WeCom."""
        try:
            wanted = self.sign(timestamp, nonce, sealed)
            return hmac.compare_digest(wanted.encode(), signature.encode())
        except UnicodeEncodeError:
            return False

    def seal(self, message: bytes, salt: bytes) -> str:
        """Encrypt a message, as WeCom does; `salt` is 16 random bytes."""
        length = len(message).to_bytes(_LENGTH, "big")
        data = salt[:_SALT_BYTES] + length + message + self.receiver.encode()
        padding = _BLOCK - len(data) % _BLOCK
        encryptor = self._cipher().encryptor()
        sealed = encryptor.update(data + bytes([padding]) * padding) + encryptor.finalize()
        return base64.b64encode(sealed).decode()

    def open(self, sealed: str) -> bytes:
        """Decrypt a message whose signature was verified; raises RelayError if that fails."""
        try:
            data = binascii.a2b_base64(sealed.encode("ascii"), strict_mode=True)
        except ValueError:
            raise _unsealed() from None
        if not data or len(data) % _AES:
            raise _unsealed()
        decryptor = self._cipher().decryptor()
        data = decryptor.update(data) + decryptor.finalize()
        padding = data[-1]
        if not 1 <= padding <= _BLOCK or data[-padding:] != bytes([padding]) * padding:
            raise _unsealed()
        content = data[_SALT_BYTES:-padding]
        end = _LENGTH + int.from_bytes(content[:_LENGTH], "big")
        if len(content) < end:
            raise _unsealed()
        if not hmac.compare_digest(content[end:], self.receiver.encode()):
            raise RelayError(Code.UNAUTHORIZED, "the message is for another receiver")
        return content[_LENGTH:end]

    def _cipher(self) -> Cipher[modes.CBC]:
        return Cipher(algorithms.AES(self.key), modes.CBC(self.key[:_AES]))


def read_crypt(token: str, encoding_key: str, receiver: str) -> BizMsgCrypt:
    """The keys in an application's settings; raises RelayError if one is malformed."""
    if _KEY.fullmatch(encoding_key) is None:
        raise RelayError(
            Code.BAD_REQUEST,
            "an EncodingAESKey has 43 letters and digits",
            where="encoding_aes_key",
            mend="copy it from the application's page",
        )
    return BizMsgCrypt(token, base64.b64decode(encoding_key + "="), receiver)


def _unsealed() -> RelayError:
    return RelayError(Code.BAD_REQUEST, "the message is not sealed for this application")


def read_xml(raw: bytes) -> dict[str, str]:
    """The texts of the elements below the root, by name; raises RelayError if malformed."""
    reading = _XmlReader()
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = reading.doctype
    parser.StartElementHandler = reading.start
    parser.EndElementHandler = reading.end
    parser.CharacterDataHandler = reading.text
    try:
        # Decoded before parsing, so that the document cannot choose its encoding.
        text = raw.decode("utf-8")
        if "\0" in text:
            raise bad("the XML has zeros in it")
        parser.Parse(text, True)
    except (expat.ExpatError, UnicodeDecodeError):
        raise bad("the body is no XML in UTF-8") from None
    return reading.found


class _XmlReader:
    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self._path: list[str] = []
        self._parts: list[str] = []
        self._elements = 0

    def doctype(self, *_given: Any) -> None:
        raise bad("the XML has a document type, which is never sent by WeCom")

    def start(self, name: str, _attributes: dict[str, str]) -> None:
        self._elements += 1
        if self._elements > _MAX_TEXT or len(self._path) >= _DEEPEST:
            raise bad("the XML has too many elements")
        if not self._path and name != _ROOT:
            raise bad("the XML is not a message of WeCom's")
        self._path.append(name)
        if len(self._path) == 2:
            self._parts.clear()

    def text(self, data: str) -> None:
        if len(self._path) == 2:
            self._parts.append(data)

    def end(self, name: str) -> None:
        if len(self._path) == 2:
            if name in self.found:
                raise bad("an element is given twice", where=name[:40])
            self.found[name] = "".join(self._parts)
        self._path.pop()
