"""The keys of the local APIs: a file with their scopes and the digests of their secrets.

The command line changes the file; a running station reads it again when it has changed, so that a
revoked key is refused at once.
"""

import fcntl
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from accord.capabilities.doors.rules import Door, DoorKey, DoorScope
from accord.community.errors import Code, CommunityError, bad_request
from accord.kernel.files import sync_folder, write_private

_log = structlog.stdlib.get_logger(__name__)

_PREFIX: Final = "accord"
_FORM: Final = re.compile(r"accord_([0-9a-f]{16})_([A-Za-z0-9_-]{43})", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)
_PATTERN: Final = re.compile(r"[A-Za-z0-9._:/@+-]{0,128}\*?", re.ASCII)
_MAX_BYTES: Final = 4 * 1024 * 1024
_MOST_KEYS: Final = 1000
_MOST_PATTERNS: Final = 64
_MOST_LIMIT: Final = 1_000_000
_LONGEST_SECONDS: Final = 10 * 365 * 86_400
_NOBODY: Final = hashlib.sha256(b"").hexdigest()


@dataclass(eq=False, repr=False)
class DoorKeys:
    """The keys in a file, which need not exist."""

    file: Path
    _known: dict[str, DoorKey] = field(default_factory=dict, init=False)
    _seen: tuple[int, ...] | None = field(default=None, init=False)

    def mint(
        self, name: str, scope: DoorScope, *, seconds: float, now: float
    ) -> tuple[DoorKey, str]:
        """Make a key, and return it with its secret, which is shown once."""
        _check(name, scope, seconds)
        with self._changing() as keys:
            keys[:] = [each for each in keys if each.expires_at > now]
            if any(each.name == name for each in keys):
                raise bad_request(
                    f"there is a key {name!r} already", mend="revoke it, or choose another name"
                )
            if len(keys) >= _MOST_KEYS:
                raise bad_request(f"there are {_MOST_KEYS} keys already", mend="revoke some")
            key_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
            made = DoorKey(key_id, name, _digest(secret), scope, now, now + seconds)
            keys.append(made)
        return made, f"{_PREFIX}_{key_id}_{secret}"

    def revoke(self, name: str) -> DoorKey:
        """End a key at once, and return it; `not_found` if there is none."""
        with self._changing() as keys:
            found = next((each for each in keys if each.name == name), None)
            if found is None:
                raise CommunityError(
                    Code.NOT_FOUND,
                    f"there is no key {name!r}",
                    mend="`accord door-key list` shows them",
                )
            keys.remove(found)
        return found

    def all(self) -> Sequence[DoorKey]:
        """Read every key, also expired ones; raises if the file cannot be read."""
        try:
            with self.file.open("rb") as opened:
                written = json.loads(opened.read(_MAX_BYTES))
            return [_parse(each) for each in written["keys"]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise CommunityError(
                Code.INTERNAL_ERROR,
                f"the keys of the local APIs cannot be read ({type(error).__name__})",
                where=str(self.file),
                mend="restore the file from a backup, or remove it and make new keys",
            ) from error

    def find(self, bearer: str, now: float) -> DoorKey | None:
        """The key with this secret, unless it has expired; none if the file is damaged."""
        form = _FORM.fullmatch(bearer)
        if form is None:
            return None
        self._look()
        found = self._known.get(form[1])
        is_right = hmac.compare_digest(found.digest if found else _NOBODY, _digest(form[2]))
        return found if found is not None and is_right and found.expires_at > now else None

    def _look(self) -> None:
        """Read the file if it has changed."""
        try:
            status = self.file.stat()
            seen: tuple[int, ...] | None = (status.st_ino, status.st_mtime_ns, status.st_size)
        except OSError:
            seen = None
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._known = {each.id: each for each in self.all()}
        except CommunityError as error:
            self._known = {}
            _log.error("keys of the local APIs are refused", why=str(error))

    @contextmanager
    def _changing(self) -> Iterator[list[DoorKey]]:
        """Replace the file with the changed list, unless an error is raised."""
        folder = self.file.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.file.with_name(f".{self.file.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keys = list(self.all())
            yield keys
            draft = self.file.with_name(f".{self.file.name}")
            draft.unlink(missing_ok=True)
            write_private(draft, json.dumps({"keys": [_written(each) for each in keys]}).encode())
            draft.rename(self.file)
            sync_folder(folder)


def _check(name: str, scope: DoorScope, seconds: float) -> None:
    if not _NAME.fullmatch(name):
        raise bad_request(
            "a key's name has up to 64 letters, digits, dots, dashes, _ and @", "name"
        )
    if not scope.doors:
        raise bad_request("a key opens at least one door: openai or mcp", "door")
    for member, patterns in (("model", scope.models), ("tool", scope.tools)):
        if len(patterns) > _MOST_PATTERNS or not all(
            each and _PATTERN.fullmatch(each) for each in patterns
        ):
            raise bad_request(
                f"expected up to {_MOST_PATTERNS} names, or beginnings of names with * at the end",
                member,
            )
    for member, limit in (("per_minute", scope.per_minute), ("at_once", scope.at_once)):
        if limit is not None and not 1 <= limit <= _MOST_LIMIT:
            raise bad_request(f"expected a number from 1 to {_MOST_LIMIT}", member)
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise bad_request("a key is good for up to 10 years", "expires")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _written(key: DoorKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "digest": key.digest,
        "doors": sorted(each.value for each in key.scope.doors),
        "models": list(key.scope.models),
        "tools": list(key.scope.tools),
        "per_minute": key.scope.per_minute,
        "at_once": key.scope.at_once,
        "network": key.scope.network,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
    }


def _parse(written: Any) -> DoorKey:
    scope = DoorScope(
        frozenset(map(Door, written["doors"])),
        tuple(map(str, written["models"])),
        tuple(map(str, written["tools"])),
        written["per_minute"],
        written["at_once"],
        written["network"] is True,
    )
    key = DoorKey(
        str(written["id"]),
        str(written["name"]),
        str(written["digest"]),
        scope,
        float(written["created_at"]),
        float(written["expires_at"]),
    )
    _check(key.name, scope, _LONGEST_SECONDS)
    return key
