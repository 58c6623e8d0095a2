"""Long work on a log for the node's owner: verify, export, import, offer a snapshot.

It goes on by itself; the owner asks again until it is done, and hears meanwhile how far it is.
Files are the owner's own, on this machine. A file is written whole or not at all.
"""

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, TypeAlias

from accord.community.errors import Code, CommunityError
from accord.community.fold.vouching import MAX_BYTES, Snapshot, read_snapshot
from accord.community.log import Log, export_log, import_log, verify_log
from accord.community.log.proving import prove
from accord.community.log.upkeep import offer
from accord.community.node.hosted import Hosted
from accord.kernel.files import sync_folder

_PATIENCE_SECONDS: Final = 1.0
_MOST: Final = 8
_LINE: Final = 512 * 1024

Progress: TypeAlias = Callable[[int], None]


class Hosting(Protocol):
    """The communities of a node."""

    @property
    def communities(self) -> Mapping[str, Hosted]:
        """Those it is in, by id."""
        ...

    async def host(self, community_id: str) -> Hosted:
        """Open the log of a community."""
        ...


@dataclass(slots=True, eq=False)
class _Job:
    task: "asyncio.Task[dict[str, Any]]"
    done: int = 0


class Working:
    """The long work of one node."""

    def __init__(self, node: Hosting) -> None:
        self._node = node
        self._jobs: dict[tuple[str, str, str], _Job] = {}
        self._kinds: Mapping[str, Callable[[str, Path, Progress], Awaitable[dict[str, Any]]]] = {
            "verify": self._verify,
            "export": self._export,
            "import": self._import,
            "snapshot": self._snapshot,
        }

    async def ask(self, community_id: str, kind: str, path: str) -> dict[str, Any]:
        """Begin a piece of work, or go on waiting for it for a second.

        Returns:
            How many events are `done`, and the `result`, which is None until there is one.

        Raises:
            CommunityError: There is no such work (`bad_request`), too much is under way, or what
                the work itself came to.
        """
        work = self._kinds.get(kind)
        if work is None or (path and not Path(path).is_absolute()):
            raise CommunityError(
                Code.BAD_REQUEST, "expected verify, export, import or snapshot, and a whole path"
            )
        name = community_id, kind, path
        job = self._jobs.get(name)
        if job is None:
            job = self._begin(name, work)
        await asyncio.wait({job.task}, timeout=_PATIENCE_SECONDS)
        if not job.task.done():
            return {"done": job.done, "result": None}
        self._jobs.pop(name, None)
        return {"done": job.done, "result": job.task.result()}

    async def close(self) -> None:
        """Stop what is under way; nothing is left half-written."""
        tasks = [job.task for job in self._jobs.values()]
        self._jobs.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(
        self,
        name: tuple[str, str, str],
        work: Callable[[str, Path, Progress], Awaitable[dict[str, Any]]],
    ) -> _Job:
        if len(self._jobs) >= _MOST:
            raise CommunityError(Code.CAPACITY_EXCEEDED, f"{_MOST} pieces of work are under way")

        def progress(done: int) -> None:
            job.done = done

        async def run() -> dict[str, Any]:
            try:
                return await work(name[0], Path(name[2]), progress)
            except OSError as error:
                raise CommunityError(
                    Code.BAD_REQUEST,
                    f"the file cannot be used ({error.strerror or error})",
                    where=name[2],
                    mend="name one that this user may use",
                ) from error

        job = self._jobs[name] = _Job(asyncio.create_task(run(), name=f"{name[1]} a log"))
        return job

    async def _verify(self, community_id: str, _path: Path, progress: Progress) -> dict[str, Any]:
        audit = await verify_log(self._log(community_id), progress=progress)
        return {
            "ok": audit.ok,
            "events": audit.events,
            "stubs": audit.stubs,
            "findings": [
                {"rule": each.rule, "pointer": each.pointer, "message": each.message}
                for each in audit.findings
            ],
        }

    async def _export(self, community_id: str, path: Path, progress: Progress) -> dict[str, Any]:
        log = self._log(community_id)
        draft = path.with_name(f".{path.name[:200]}.{secrets.token_hex(8)}")
        try:
            # Not beside the loop: whoever cancels must find the file, or none.
            with _create(draft) as file:
                written = await export_log(log, file, progress=progress)
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
            os.link(draft, path)  # fails where a rename would replace
        finally:
            draft.unlink(missing_ok=True)
        await asyncio.to_thread(sync_folder, path.parent)
        return {"events": written}

    async def _import(self, community_id: str, path: Path, progress: Progress) -> dict[str, Any]:
        with _open(path) as file:
            if community_id not in self._node.communities:
                await asyncio.to_thread(_check_founding, file, community_id)
            hosted = await self._node.host(community_id)
            found = await import_log(hosted.log, file, progress=progress)
        return {
            "accepted": found.accepted,
            "duplicates": found.duplicates,
            "rejected": found.rejected,
            "lines": [
                {"line": each.number, "error": each.code.value, "message": each.reason}
                for each in found.lines
            ],
        }

    async def _snapshot(self, community_id: str, path: Path, _progress: Progress) -> dict[str, Any]:
        log = self._log(community_id)
        snapshot = await asyncio.to_thread(_read_snapshot, path, community_id)
        await offer(log, snapshot)
        return {"lamport": snapshot.lamport, "state_digest": snapshot.state_digest}

    def _log(self, community_id: str) -> Log:
        hosted = self._node.communities.get(community_id)
        if hosted is None:
            raise CommunityError(Code.NOT_FOUND, "this node is not in that community")
        return hosted.log


def _open(path: Path) -> BinaryIO:
    return path.open("rb")


def _read_snapshot(path: Path, community_id: str) -> Snapshot:
    with _open(path) as file:
        # One byte more than is allowed tells that it is too long, and no more is read.
        return read_snapshot(file.read(MAX_BYTES + 1), community_id)


def _create(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _check_founding(file: BinaryIO, community_id: str) -> None:
    """Let a log begin with a file only if that begins with the founding of the community."""
    file.readline(_LINE)
    first = prove(file.readline(_LINE).rstrip(b"\n"), community_id).event
    if first.event_type != "community.created":
        raise CommunityError(
            Code.BAD_REQUEST,
            "this node is not in that community, and the file does not begin with its founding",
            mend="export the log anew on a node that has all of it",
        )
    file.seek(0)
