"""Pseudonyms and digests under a secret of the store, so that nobody can guess what they stand for.

The secret is random, made by the first process that needs it, and encrypted under the keyring: who
has a copy of the store or of exported segments cannot compare pseudonyms with a list of ids. It
never changes, so the same account has the same pseudonym everywhere in the store.
"""

import secrets
from dataclasses import dataclass
from typing import Final

from blake3 import blake3
from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from accord.kernel import canonical
from accord.relay.connector.store import Storage
from accord.relay.connector.tables import store_secrets
from accord.relay.connector.vault import Box, Keyring

_NAME: Final = "pseudonyms"
_KEY_BYTES: Final = 32
_SHOWN: Final = 32
_MINE = select(store_secrets).where(store_secrets.c.name == _NAME)
_INSERT = {
    "postgresql": postgresql.insert(store_secrets).on_conflict_do_nothing(),
    "sqlite": sqlite.insert(store_secrets).on_conflict_do_nothing(),
}


@dataclass(frozen=True, slots=True, repr=False)
class Pseudonyms:
    """Stand-ins for ids and contents, the same in all processes of a store."""

    key: bytes

    def person(self, platform: str, user_id: str) -> str:
        """What stands for an account."""
        return self._name("person", platform, user_id)

    def chat(self, platform: str, chat_id: str) -> str:
        """What stands for a chat."""
        return self._name("chat", platform, chat_id)

    def event(self, platform: str, event_id: str) -> str:
        """What stands for a platform's id of a message."""
        return self._name("event", platform, event_id)

    def digest(self, content: bytes) -> str:
        """A digest by which equal contents are recognised, as 64 hexadecimal digits."""
        return blake3(b"content:" + content, key=self.key).hexdigest()

    def _name(self, *parts: str) -> str:
        written = canonical.encode(list(parts))
        return f"~{blake3(b'name:' + written, key=self.key).hexdigest()[:_SHOWN]}"


@dataclass(eq=False, repr=False, slots=True)
class StoreSecret:
    """The secret of a store, read once by each process."""

    keyring: Keyring
    _read: Pseudonyms | None = None

    async def load(self, store: Storage) -> Pseudonyms:
        """Read it, and make it where it is missing; raises RelayError if it cannot be decrypted."""
        if self._read is None:
            # Only what was committed is remembered.
            self._read = await store.write(self.read)
        return self._read

    def read(self, connection: Connection) -> Pseudonyms:
        """The same within a unit of work that writes."""
        if self._read is not None:
            return self._read
        row = connection.execute(_MINE).first()
        if row is None:
            # Another process may be first: what is stored then counts.
            self._make(connection)
            row = connection.execute(_MINE).one()
        key = self.keyring.open(Box(row.key_id, row.box), "store", _NAME)
        return Pseudonyms(canonical.decode_base64url(key))

    def _make(self, connection: Connection) -> None:
        key = canonical.encode_base64url(secrets.token_bytes(_KEY_BYTES))
        box = self.keyring.close(key, "store", _NAME)
        values = {"name": _NAME, "key_id": box.key_id, "box": box.data}
        connection.execute(_INSERT[connection.dialect.name], values)
