"""BizMsgCrypt: how WeCom signs and seals what it sends to an application.

Pure; chance comes in as an argument. The signature is the SHA-1 of token, timestamp, nonce and
sealed text, sorted; sealed is 16 random bytes, the length, the message and the id of the receiver,
padded to 32 bytes, by AES-256-CBC. Nothing is opened before its signature is proven.
"""

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from accord.relay.errors import Code, RelayError

_KEY: Final = re.compile(r"[A-Za-z0-9+/]{43}")
_BLOCK: Final = 32
_AES: Final = 16
_SALT: Final = 16
_LENGTH: Final = 4


@dataclass(frozen=True, slots=True)
class Crypt:
    """What an application shares with WeCom; shown by nothing.

    Attributes:
        token: Signs.
        key: Seals; 32 bytes.
        receiver: Whom messages are for: the corporation's id.
    """

    token: str
    key: bytes
    receiver: str

    def __repr__(self) -> str:
        return f"Crypt(receiver={self.receiver!r})"

    def sign(self, timestamp: str, nonce: str, sealed: str) -> str:
        """The signature of a sealed message."""
        parts = sorted(each.encode() for each in (self.token, timestamp, nonce, sealed))
        return hashlib.sha1(b"".join(parts), usedforsecurity=False).hexdigest()

    def is_signed(self, signature: str, timestamp: str, nonce: str, sealed: str) -> bool:
        """Whether a sealed message is signed by WeCom."""
        try:
            wanted = self.sign(timestamp, nonce, sealed)
            return hmac.compare_digest(wanted.encode(), signature.encode())
        except UnicodeEncodeError:
            return False

    def seal(self, message: bytes, salt: bytes) -> str:
        """Seal a message, as WeCom does.

        Args:
            message: What is sealed.
            salt: 16 random bytes.
        """
        length = len(message).to_bytes(_LENGTH, "big")
        data = salt[:_SALT] + length + message + self.receiver.encode()
        padding = _BLOCK - len(data) % _BLOCK
        encryptor = self._cipher().encryptor()
        sealed = encryptor.update(data + bytes([padding]) * padding) + encryptor.finalize()
        return base64.b64encode(sealed).decode()

    def open(self, sealed: str) -> bytes:
        """The message in a sealed text whose signature is proven.

        Raises:
            RelayError: It is not sealed by this key, or for another receiver.
        """
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
        content = data[_SALT:-padding]
        end = _LENGTH + int.from_bytes(content[:_LENGTH], "big")
        if len(content) < end:
            raise _unsealed()
        if not hmac.compare_digest(content[end:], self.receiver.encode()):
            raise RelayError(Code.UNAUTHORIZED, "the message is for another receiver")
        return content[_LENGTH:end]

    def _cipher(self) -> Cipher[modes.CBC]:
        return Cipher(algorithms.AES(self.key), modes.CBC(self.key[:_AES]))


def read_crypt(token: str, encoding_key: str, receiver: str) -> Crypt:
    """What the settings of an application say.

    Raises:
        RelayError: The EncodingAESKey is none.
    """
    if _KEY.fullmatch(encoding_key) is None:
        raise RelayError(
            Code.BAD_REQUEST,
            "an EncodingAESKey has 43 letters and digits",
            where="encoding_aes_key",
            mend="copy it from the application's page",
        )
    return Crypt(token, base64.b64decode(encoding_key + "="), receiver)


def _unsealed() -> RelayError:
    return RelayError(Code.BAD_REQUEST, "the message is not sealed for this application")
