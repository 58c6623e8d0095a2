"""The owner's API of a node: its routes, and long jobs on a log (verify, export, import).

Only the node's own key from this machine is admitted; the command line and the console use it.
Jobs run in the background and the owner polls them. A file is written completely or not at all.
"""

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias

from starlette.routing import Route

from accord.community import queries
from accord.community.bus import AdmittedRequest, Bus
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.intake import prove_event
from accord.community.log import export_log, import_log
from accord.community.queries import verify_log
from accord.community.retention import offer_snapshot
from accord.community.rules import formats
from accord.community.rules.capabilities import check_capability
from accord.community.rules.routing import Route as Candidate
from accord.community.rules.routing import is_routed
from accord.community.rules.snapshots import MAX_SNAPSHOT, Snapshot, read_snapshot
from accord.kernel.files import sync_folder

if TYPE_CHECKING:
    from accord.community.node import Node

_PATIENCE_SECONDS: Final = 1.0
_MOST: Final = 8
_LINE: Final = 512 * 1024

JobProgress: TypeAlias = Callable[[int], None]


@dataclass(slots=True, eq=False)
class _LogJob:
    task: "asyncio.Task[dict[str, Any]]"
    done: int = 0


class LogJobs:
    """The long-running jobs of one node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._jobs: dict[tuple[str, str, str], _LogJob] = {}
        self._kinds: Mapping[str, Callable[[str, Path, JobProgress], Awaitable[dict[str, Any]]]] = {
            "verify": self._verify,
            "export": self._export,
            "import": self._import,
            "snapshot": self._snapshot,
        }

    async def ask(self, community_id: str, kind: str, path: str) -> dict[str, Any]:
        """Start a job or wait for a running one, at most one second.

        Returns the number of events `done`, and the `result`, None while the job runs. Raises the
        job's error, or if there is no such kind of job or there are too many.
        """
        work = self._kinds.get(kind)
        if work is None or (path and not Path(path).is_absolute()):
            raise bad_request("expected verify, export, import or snapshot, and an absolute path")
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
        """Cancel all jobs; no file is left half-written."""
        tasks = [job.task for job in self._jobs.values()]
        self._jobs.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(
        self,
        name: tuple[str, str, str],
        work: Callable[[str, Path, JobProgress], Awaitable[dict[str, Any]]],
    ) -> _LogJob:
        if len(self._jobs) >= _MOST:
            raise CommunityError(Code.CAPACITY_EXCEEDED, f"{_MOST} jobs are running already")

        def progress(done: int) -> None:
            job.done = done

        async def run() -> dict[str, Any]:
            try:
                return await work(name[0], Path(name[2]), progress)
            except OSError as error:
                raise bad_request(
                    f"the file cannot be used ({error.strerror or error})",
                    where=name[2],
                    mend="name one that this user may use",
                ) from error

        job = self._jobs[name] = _LogJob(asyncio.create_task(run(), name=f"{name[1]} a log"))
        return job

    async def _verify(
        self, community_id: str, _path: Path, progress: JobProgress
    ) -> dict[str, Any]:
        audit = await verify_log(self._node.community(community_id).log, progress=progress)
        return {
            "ok": audit.ok,
            "events": audit.events,
            "stubs": audit.stubs,
            "findings": [
                {"rule": each.rule, "pointer": each.pointer, "message": each.message}
                for each in audit.findings
            ],
        }

    async def _export(self, community_id: str, path: Path, progress: JobProgress) -> dict[str, Any]:
        log = self._node.community(community_id).log
        draft = path.with_name(f".{path.name[:200]}.{secrets.token_hex(8)}")
        try:
            # Not in a thread: after a cancellation the file exists or it does not.
            with _create(draft) as file:
                written = await export_log(log, file, progress=progress)
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
            os.link(draft, path)  # fails where a rename would replace
        finally:
            draft.unlink(missing_ok=True)
        await asyncio.to_thread(sync_folder, path.parent)
        return {"events": written}

    async def _import(self, community_id: str, path: Path, progress: JobProgress) -> dict[str, Any]:
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

    async def _snapshot(
        self, community_id: str, path: Path, _progress: JobProgress
    ) -> dict[str, Any]:
        log = self._node.community(community_id).log
        snapshot = await asyncio.to_thread(_read_snapshot, path, community_id)
        await offer_snapshot(log, snapshot)
        return {"lamport": snapshot.lamport, "state_digest": snapshot.state_digest}


def _open(path: Path) -> BinaryIO:
    return path.open("rb")


def _read_snapshot(path: Path, community_id: str) -> Snapshot:
    with _open(path) as file:
        # One byte more than allowed shows that it is too long.
        return read_snapshot(file.read(MAX_SNAPSHOT + 1), community_id)


def _create(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _check_founding(file: BinaryIO, community_id: str) -> None:
    """Check that a file begins with the founding event of the community."""
    file.readline(_LINE)
    first = prove_event(file.readline(_LINE).rstrip(b"\n"), community_id).event
    if first.event_type != "community.created":
        raise bad_request(
            "this node is not in that community, and the file does not begin with its founding",
            mend="export the log anew on a node that has all of it",
        )
    file.seek(0)


PREFIX: Final = "/node/v1"
_MAX_COUNT: Final = 2**53 - 1
_MAX_WAIT_SECONDS: Final = 60


def control_routes(bus: Bus, node: "Node") -> Sequence[Route]:
    """The routes of the owner's API."""

    def route(
        name: str, method: str, work: Callable[[AdmittedRequest, Mapping[str, Any]], Awaitable[Any]]
    ) -> Route:
        async def handle(guest: AdmittedRequest) -> Mapping[str, Any]:
            if not guest.own:
                raise CommunityError(
                    Code.UNAUTHORIZED, "only the node's owner, on its own machine, may ask this"
                )
            body = guest.body if method == "POST" else {}
            if not isinstance(body, dict):
                raise bad_request("expected a JSON object")
            found: Mapping[str, Any] = await work(guest, body)
            return found

        return bus.signed_route(f"{PREFIX}/{name}", handle, methods=[method], strangers=True)

    async def act(guest: AdmittedRequest, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return await node.act(
            guest.request.community, _text(body, "event_type"), _object(body, "data")
        )

    async def policy(guest: AdmittedRequest, body: Mapping[str, Any]) -> Mapping[str, Any]:
        root_key = Path(_text(body, "root_key")) if "root_key" in body else None
        return await node.change_policy(guest.request.community, _object(body, "policy"), root_key)

    async def show(guest: AdmittedRequest, _body: Mapping[str, Any]) -> Mapping[str, Any]:
        return await queries.describe_community(node.community(guest.request.community))

    async def members(guest: AdmittedRequest, _body: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"members": await queries.list_members(node.community(guest.request.community))}

    async def chain(guest: AdmittedRequest, body: Mapping[str, Any]) -> Mapping[str, Any]:
        hosted = node.community(guest.request.community)
        seq = _count(body, "seq", _MAX_COUNT) if "seq" in body else None
        return await queries.describe_chain(hosted, _id(body, "node_id"), seq)

    async def log(guest: AdmittedRequest, body: Mapping[str, Any]) -> Mapping[str, Any]:
        found = await queries.log_entries(
            node.community(guest.request.community),
            limit=_count(body, "limit", queries.MAX_ENTRIES),
            author=_id(body, "author") if "author" in body else None,
            event_type=_text(body, "event_type") if "event_type" in body else None,
            refused=body.get("refused") is True,
        )
        return {"entries": found}

    async def event(guest: AdmittedRequest, body: Mapping[str, Any]) -> Mapping[str, Any]:
        hosted = node.community(guest.request.community)
        return {"events": await queries.find_events(hosted, _text(body, "name"))}

    async def files(guest: AdmittedRequest, body: Mapping[str, Any]) -> Mapping[str, Any]:
        hosted = node.community(guest.request.community)
        return {"files": await queries.describe_files(hosted, _texts(body, "cids"))}

    async def changes(guest: AdmittedRequest, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The change number; with `after`, wait for a later change and return its event types."""
        found = node.community(guest.request.community).changes
        if "after" not in body:
            return {"number": found.number}
        after = _count(body, "after", _MAX_COUNT)
        await found.wait(after, _count(body, "seconds", _MAX_WAIT_SECONDS))
        types = found.event_types(after)
        return {"number": found.number, "event_types": None if types is None else sorted(types)}

    async def work(guest: AdmittedRequest, body: Mapping[str, Any]) -> Mapping[str, Any]:
        path = _text(body, "path") if "path" in body else ""
        return await node.jobs.ask(guest.request.community, _text(body, "kind"), path)

    async def routes(guest: AdmittedRequest, body: Mapping[str, Any]) -> Mapping[str, Any]:
        params = {name: _text(body, name) for name in ("model", "corpus") if name in body}
        given = {"filter": {"language": _text(body, "language")}} if "language" in body else {}
        version = _text(body, "version") if "version" in body else "1.0"
        needs = node.router.needs(
            check_capability(_text(body, "capability")), version, params, given
        )
        found = await node.router.explain(guest.request.community, needs)
        return {
            "routed": is_routed(needs.capability),
            "routes": [_described_route(each) for each in found],
        }

    async def models(guest: AdmittedRequest, body: Mapping[str, Any]) -> Mapping[str, Any]:
        found = await node.router.models(guest.request.community, _text(body, "capability"))
        return {
            "models": [
                {"name": each.name, "nodes": list(each.nodes), "built_in": each.built_in}
                for each in found
            ]
        }

    async def pardon(_guest: AdmittedRequest, body: Mapping[str, Any]) -> Mapping[str, Any]:
        found = node.router.bars.forget(_id(body, "node_id"))
        await asyncio.to_thread(node.router.bars.save)
        return {"forgotten": found}

    return (
        route("status", "GET", lambda _guest, _body: node.status()),
        route(
            "found",
            "POST",
            lambda _guest, body: node.found(_text(body, "name"), _object(body, "policy")),
        ),
        route(
            "join",
            "POST",
            lambda _guest, body: node.join(
                _text(body, "link"), _text(body, "name") if "name" in body else None
            ),
        ),
        route("use", "POST", lambda guest, _body: node.use(guest.request.community)),
        route(
            "name",
            "POST",
            lambda guest, body: node.rename(guest.request.community, _text(body, "name")),
        ),
        route(
            "leave",
            "POST",
            lambda _guest, body: node.leave(
                _text(body, "community_id"), untold=body.get("untold") is True
            ),
        ),
        route(
            "recover",
            "POST",
            lambda _guest, body: node.recover(
                _text(body, "community_id"),
                _texts(body, "peers") if "peers" in body else [],
                alone=body.get("alone") is True,
            ),
        ),
        route("act", "POST", act),
        route("policy", "POST", policy),
        route("peers", "GET", lambda guest, _body: node.peers(guest.request.community)),
        route("sync", "POST", lambda guest, _body: node.sync(guest.request.community)),
        route("community", "GET", show),
        route("members", "GET", members),
        route("chain", "POST", chain),
        route("log", "POST", log),
        route("event", "POST", event),
        route("files", "POST", files),
        route("changes", "POST", changes),
        route("work", "POST", work),
        route("routes", "POST", routes),
        route("models", "POST", models),
        route("pardon", "POST", pardon),
    )


def _described_route(route: Candidate) -> dict[str, Any]:
    params = (route.listing or {}).get("params")
    told = params if isinstance(params, Mapping) else {}
    return {
        **{name: told[name] for name in ("model", "about") if isinstance(told.get(name), str)},
        "node_id": route.node_id,
        "name": route.name,
        "local": route.local,
        "usable": route.usable,
        "cost_ms": round(route.cost * 1000, 1),
        "reasons": [{"rule": each.rule, "message": each.message} for each in route.reasons],
    }


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise bad_request("expected a text", where=f"/{name}")
    return value


def _texts(body: Mapping[str, Any], name: str) -> list[str]:
    value = body.get(name)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise bad_request("expected a list of texts", where=f"/{name}")
    return value


def _object(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name, {})
    if not isinstance(value, dict):
        raise bad_request("expected an object", where=f"/{name}")
    return value


def _id(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not formats.is_id(value):
        raise bad_request("expected the full id of a node", where=f"/{name}")
    return str(value)


def _count(body: Mapping[str, Any], name: str, most: int) -> int:
    value = body.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise bad_request(f"expected a whole number from 0 to {most}", where=f"/{name}")
    return value
