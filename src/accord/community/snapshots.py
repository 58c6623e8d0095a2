"""Snapshots between nodes: served in parts, verified part by part, and fetched with resume.

The first answer names the digest of every part, so a damaged part is noticed and asked for again
by itself. Parts that were verified lie in the community's folder until the snapshot is complete: a
fetch that was interrupted goes on there. Who signed what is decided by `rules.snapshots`.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import structlog
from blake3 import blake3

from accord.community.client import Client
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.log import EventLog
from accord.community.retention import offered_snapshot
from accord.community.rules import formats
from accord.community.rules.snapshots import MAX_SNAPSHOT, Snapshot, read_snapshot
from accord.kernel import canonical
from accord.kernel.canonical import Base64Error

_log = structlog.stdlib.get_logger(__name__)

SNAPSHOT: Final = "/sync/v1/snapshot"

PART_BYTES: Final = 4 * 1024 * 1024
"""How much of a snapshot one answer holds."""

_HELD_SECONDS: Final = 120.0
# How often a part that is not what its digest says is asked for.
_TRIES: Final = 3
_SMALLEST_PART: Final = 1024
_DRAFT: Final = "snapshot.part"
_PLAN: Final = "snapshot.plan"


@dataclass(frozen=True, slots=True)
class _Held:
    """A snapshot that is being fetched."""

    snapshot: Snapshot
    raw: bytes
    digest: str
    parts: tuple[str, ...]

    def part(self, offset: int) -> Mapping[str, Any]:
        """The answer with the part that begins at an offset."""
        return {
            "lamport": self.snapshot.lamport,
            "size_bytes": len(self.raw),
            "digest": self.digest,
            "offset": offset,
            "data_b64": canonical.encode_base64url(self.raw[offset : offset + PART_BYTES]),
            "part_bytes": PART_BYTES,
            "parts": list(self.parts),
        }

    def voucher(self) -> Mapping[str, Any]:
        """Everything but the state."""
        snapshot = self.snapshot
        return {
            "lamport": snapshot.lamport,
            "wall_clock": snapshot.wall_clock,
            "author": snapshot.author,
            "signature": snapshot.signature,
            "state_digest": snapshot.state_digest,
        }


class SnapshotServer:
    """Serves the signed snapshots of a node's logs.

    Encoding one takes long, so the last one is cached for two minutes.
    """

    def __init__(self) -> None:
        self._held: _Held | None = None
        self._writing = asyncio.Lock()
        self._expiry: asyncio.TimerHandle | None = None

    async def answer(self, log: EventLog, asked: Any) -> Mapping[str, Any]:
        """Answer a request for a snapshot.

        `asked` has `lamport` (null for the newest) and `offset` of a part, or `vouch` for the
        signature without the state; nodes of version 0.2 send no `offset` and get the whole.
        Raises `not_found` or `bad_request`.
        """
        given = asked if isinstance(asked, dict) else {}
        lamport, offset = given.get("lamport"), given.get("offset")
        async with self._writing:
            held = await self._hold(log, lamport if isinstance(lamport, int) else None, offset)
        if given.get("vouch") is True:
            return await asyncio.to_thread(held.voucher)
        if offset is None:
            whole: dict[str, Any] = await asyncio.to_thread(
                canonical.decode, held.raw, max_bytes=MAX_SNAPSHOT
            )
            return whole
        if type(offset) is not int or not 0 <= offset < len(held.raw):
            raise bad_request("the snapshot has no such part", where="/offset")
        return held.part(offset)

    async def _hold(self, log: EventLog, lamport: int | None, offset: Any) -> _Held:
        held = self._held
        self._keep_for_a_while()
        is_same = held is not None and held.snapshot.community_id == log.community_id
        if held is not None and is_same and offset and held.snapshot.lamport == lamport:
            return held
        snapshot = await offered_snapshot(log, lamport)
        if snapshot is None:
            raise CommunityError(Code.NOT_FOUND, "this node has signed no such snapshot")
        if held is None or not is_same or held.snapshot.signature != snapshot.signature:
            held = await asyncio.to_thread(_cut, snapshot)
        self._held = held
        return held

    def _keep_for_a_while(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(_HELD_SECONDS, self._let_go)

    def _let_go(self) -> None:
        self._held = self._expiry = None


def _cut(snapshot: Snapshot) -> _Held:
    raw = snapshot.encode()
    parts = tuple(_digest(raw[at : at + PART_BYTES]) for at in range(0, len(raw), PART_BYTES))
    return _Held(snapshot, raw, _digest(raw), parts)


def _digest(data: bytes) -> str:
    return "blake3:" + blake3(data).hexdigest()


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """What a snapshot consists of; `parts` is empty if its node does not tell their digests."""

    lamport: int
    size_bytes: int
    digest: str
    part_bytes: int = 0
    parts: tuple[str, ...] = ()

    @classmethod
    def read(cls, answer: Any) -> "SnapshotPlan":
        """Read the plan in an answer or a file; raises `bad_request`."""
        try:
            lamport, size, digest = answer["lamport"], answer["size_bytes"], answer["digest"]
            part_bytes, parts = answer.get("part_bytes", 0), answer.get("parts", [])
        except (TypeError, KeyError, AttributeError) as error:
            raise bad_request("this is no part of a snapshot") from error
        is_formed = type(lamport) is int and type(size) is int and isinstance(digest, str)
        if not is_formed or type(part_bytes) is not int or not isinstance(parts, list):
            raise bad_request("this is no part of a snapshot")
        if not 0 < size <= MAX_SNAPSHOT:
            raise bad_request(f"a snapshot has at most {MAX_SNAPSHOT} bytes")
        if not parts:
            return cls(lamport, size, digest)
        if part_bytes < _SMALLEST_PART or len(parts) != -(-size // part_bytes):
            raise bad_request("the snapshot has not as many parts as it should")
        if not all(isinstance(each, str) for each in parts):
            raise bad_request("this is no part of a snapshot")
        return cls(lamport, size, digest, part_bytes, tuple(parts))

    def fits(self, offset: int, data: bytes) -> bool:
        """Whether data is what lies at an offset, as far as the plan tells."""
        if not data or offset + len(data) > self.size_bytes:
            return False
        if not self.parts:
            return True
        number, rest = divmod(offset, self.part_bytes)
        return not rest and _digest(data) == self.parts[number]

    def encode(self) -> bytes:
        """The plan as JSON."""
        return canonical.encode(
            {
                "lamport": self.lamport,
                "size_bytes": self.size_bytes,
                "digest": self.digest,
                "part_bytes": self.part_bytes,
                "parts": list(self.parts),
            }
        )


@dataclass(slots=True)
class SnapshotDraft:
    """The verified parts of a snapshot so far, kept in a folder if there is one.

    A folder that cannot be written, as on a full disk, only means that the next fetch begins anew.
    """

    folder: Path | None
    plan: SnapshotPlan | None = None
    data: bytearray = field(default_factory=bytearray)

    @classmethod
    def open(cls, folder: Path | None) -> "SnapshotDraft":
        """What an earlier fetch has left; whatever is damaged is left out."""
        draft = cls(folder)
        if folder is None:
            return draft
        try:
            plan = SnapshotPlan.read(canonical.decode((folder / _PLAN).read_bytes()))
            raw = (folder / _DRAFT).read_bytes()
        except (OSError, canonical.CanonicalError, CommunityError):
            return draft
        if plan.parts:
            draft.plan = plan
            for at in range(0, len(raw), plan.part_bytes):
                if not plan.fits(at, part := raw[at : at + plan.part_bytes]):
                    break
                draft.data += part
        return draft

    def begin(self, plan: SnapshotPlan) -> None:
        """Start over with a snapshot."""
        self.discard()
        self.plan = plan
        if self.folder is not None and plan.parts:
            with self._writing():
                (self.folder / _PLAN).write_bytes(plan.encode())

    def add(self, data: bytes) -> None:
        """Keep a verified part."""
        self.data += data
        if self.folder is not None and self.plan is not None and self.plan.parts:
            mode = "r+b" if len(self.data) > len(data) else "wb"
            with self._writing(), (self.folder / _DRAFT).open(mode) as file:
                file.seek(len(self.data) - len(data))
                file.truncate()
                file.write(data)

    def discard(self) -> None:
        """Forget everything."""
        self.plan = None
        self.data = bytearray()
        if self.folder is not None:
            with self._writing():
                for name in (_PLAN, _DRAFT):
                    (self.folder / name).unlink(missing_ok=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.folder = None
            _log.warning("parts of a snapshot cannot be kept on disk", why=str(error))


async def fetch_snapshot(
    client: Client, lamport: int | None, *, folder: Path | None = None
) -> Snapshot | None:
    """Fetch a node's snapshot at a lamport, or its newest; None if it has none.

    What was fetched before an interruption is kept in `folder`, and the next call goes on there.
    Raises if the node does not answer, or the snapshot is malformed, too large or badly signed.
    """
    draft = await asyncio.to_thread(SnapshotDraft.open, folder)
    if draft.plan is not None and lamport in (None, draft.plan.lamport):
        with suppress(CommunityError):
            # Only if the node still has the same one; whatever else is wrong shows up below.
            await _continue(client, draft)
    if draft.plan is None or len(draft.data) < draft.plan.size_bytes:
        try:
            answer = await client.post(SNAPSHOT, {"lamport": lamport, "offset": 0})
        except CommunityError as error:
            if error.code is Code.NOT_FOUND:
                return None
            raise
        if isinstance(answer, dict) and "state" in answer:
            # A node of version 0.2 knows no parts.
            return await asyncio.to_thread(
                lambda: read_snapshot(canonical.encode(answer), client.community)
            )
        plan = SnapshotPlan.read(answer)
        if plan != draft.plan or not draft.data:
            await asyncio.to_thread(draft.begin, plan)
            await _take(client, draft, answer)
        while len(draft.data) < plan.size_bytes:
            asked = {"lamport": plan.lamport, "offset": len(draft.data)}
            await _take(client, draft, await client.post(SNAPSHOT, asked))
    try:
        return await asyncio.to_thread(_finished, draft, client.community)
    finally:
        await asyncio.to_thread(draft.discard)


async def _continue(client: Client, draft: SnapshotDraft) -> None:
    """Fetch the parts that a draft lacks."""
    assert draft.plan is not None
    while len(draft.data) < draft.plan.size_bytes:
        asked = {"lamport": draft.plan.lamport, "offset": len(draft.data)}
        await _take(client, draft, await client.post(SNAPSHOT, asked))


async def _take(client: Client, draft: SnapshotDraft, answer: Any) -> None:
    """Verify and keep the next part; a damaged one is asked for again."""
    plan, offset = draft.plan, len(draft.data)
    assert plan is not None
    for _ in range(_TRIES):
        found = SnapshotPlan.read(answer)
        if (found.lamport, found.size_bytes, found.digest) != (
            plan.lamport,
            plan.size_bytes,
            plan.digest,
        ):
            raise CommunityError(
                Code.PARTITION, "the node has a different snapshot now", mend="ask for it again"
            )
        try:
            data = canonical.decode_base64url(answer["data_b64"])
            is_there = answer["offset"] == offset
        except (TypeError, KeyError, AttributeError, Base64Error) as error:
            raise bad_request("this is no part of a snapshot") from error
        if is_there and plan.fits(offset, data):
            await asyncio.to_thread(draft.add, data)
            return
        if not plan.parts:
            break
        answer = await client.post(SNAPSHOT, {"lamport": plan.lamport, "offset": offset})
    raise bad_request("a part of the snapshot is not what it should be")


def _finished(draft: SnapshotDraft, community_id: str) -> Snapshot:
    raw = bytes(draft.data)
    if draft.plan is None or _digest(raw) != draft.plan.digest:
        raise bad_request("the parts do not make up the snapshot")
    return read_snapshot(raw, community_id)


async def fetch_voucher(client: Client, snapshot: Snapshot) -> Snapshot | None:
    """The same snapshot as another node has signed it; None if it has not signed this state.

    Only the signature travels; nodes of older versions send the whole. Raises `invalid_signature`
    for a bad signature, and if the node does not answer.
    """
    asked = {"lamport": snapshot.lamport, "offset": 0, "vouch": True}
    try:
        answer = await client.post(SNAPSHOT, asked)
    except CommunityError as error:
        if error.code is Code.NOT_FOUND:
            return None
        raise
    if isinstance(answer, dict) and "state_digest" not in answer:
        return await fetch_snapshot(client, snapshot.lamport)
    try:
        told = [answer[name] for name in ("author", "wall_clock", "signature", "state_digest")]
    except (TypeError, KeyError) as error:
        raise bad_request("this does not vouch for a snapshot") from error
    if not all(isinstance(each, str) for each in told) or not formats.is_time(told[1]):
        raise bad_request("this does not vouch for a snapshot")
    author, wall_clock, signature, digest = told

    def verify() -> Snapshot | None:
        if digest != snapshot.state_digest:
            return None
        signed = replace(snapshot, author=author, wall_clock=wall_clock, signature=signature)
        if not signed.is_signed:
            raise CommunityError(
                Code.INVALID_SIGNATURE, "the snapshot's signature is not its author's"
            )
        return signed

    return await asyncio.to_thread(verify)
