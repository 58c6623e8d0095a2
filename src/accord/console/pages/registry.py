"""Registry: versions of contracts, who relies on them, and for whom a change would fail.

For whom follows from what was accepted and who is there. Where the pipeline has published tables,
recorded calls can be asked, too: `whatif contract` runs as a command, and its result is shown here.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.responses import Response

from accord.authority.assembly import RunningAuthority
from accord.console.messages import mark, tr
from accord.console.page import Page, Visit
from accord.console.pages.contracts import report_differences
from accord.console.parts import run_state
from accord.console.sessions import PATH, ConsoleError
from accord.console.versions import MOST, version_graph
from accord.contracts.compatibility import Affected, compare, impact
from accord.kernel import canonical
from accord.kernel.clock import format_time
from accord.pipeline.folder import Layout

_CONTRACT: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*@v[0-9]+", re.ASCII)
_DIGEST: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_COMMAND: Final = "accord pipeline whatif contract"
_LOG: Final = 50
_READ: Final = 2 * MOST  # some may have one digest


async def show(visit: Visit) -> Response:
    """List the contracts of the registry."""
    running = visit.parts.authority()
    if running is None:
        return visit.show("registry.html", contracts=None)
    told = await running.operating.do("registry/list", {})
    return visit.show(
        "registry.html",
        contracts=[{**each, "at": format_time(each["pushed_at"])} for each in told["contracts"]],
    )


async def contract(visit: Visit) -> Response:
    """Show the versions of a contract, who relies on them, and what a step between two means."""
    running, identity = visit.authority(), _identity(visit.query("id"))
    told = await running.operating.do("registry/list", {"contract": identity})
    versions: Sequence[Mapping[str, Any]] = told["versions"]
    users = await running.authority.registry.users(identity)
    history = (await running.operating.do("registry/log", {"contract": identity}))["log"]
    old, new = _chosen(visit, versions)
    before, after = await _manifest(running, old), await _manifest(running, new)
    report, affected = None, list[Affected]()
    if before is not None and after is not None:
        # The proof may take a moment.
        report = await asyncio.to_thread(compare, before, after)
        affected = impact(report, before, users)
    manifests = {
        digest: found
        for digest in [str(each["digest"]) for each in versions[:_READ]]
        if (found := await _manifest(running, digest)) is not None
    }
    work = run_state(visit.parts.children.latest)
    return visit.show(
        "registry_contract.html",
        graph=await asyncio.to_thread(version_graph, versions, manifests, users),
        identity=identity,
        versions=[{**each, "at": format_time(each["pushed_at"])} for each in versions],
        unregistered=told["unregistered"],
        users=users,
        history=history[::-1][:_LOG],
        old=old,
        new=new,
        report=report,
        differences=[] if report is None else report_differences(report),
        affected=[each for each in affected if each.changes],
        unaffected=[each for each in affected if not each.changes],
        has_history=Layout(visit.parts.home / "pipeline").current.is_file(),
        work=work if work is not None and work["command"] == _command(identity, new) else None,
    )


async def whatif(visit: Visit) -> Response:
    """Ask recorded calls which of them a version would have refused."""
    running = visit.authority()
    identity = _identity(visit.form.needed("id", tr("The contract")))
    digest = _digest(visit.form.needed("digest", tr("The version")))
    manifest = await _manifest(running, digest)
    if manifest is None or manifest["id"] != identity:
        raise ConsoleError(tr("no such version is known here"), where=digest, status=404)
    arguments = ["pipeline", "whatif", "contract", f"--home={visit.parts.home}", "-"]
    command = _command(identity, digest)
    await visit.parts.children.start(command, arguments, canonical.encode(manifest))
    return visit.done(tr("Started: {command}", command=command), path=f"{PATH}/pipeline")


def _command(identity: str, digest: str) -> str:
    return f"{_COMMAND} {identity} {digest[:12]}"


def _chosen(visit: Visit, versions: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The digests to compare: as asked for, else the last two; empty where there is none."""
    known = list(dict.fromkeys(str(each["digest"]) for each in versions))
    new = _digest(visit.query("new")) if visit.query("new") else next(iter(known), "")
    others = [each for each in known if each != new]
    old = _digest(visit.query("old")) if visit.query("old") else next(iter(others), "")
    return old, new


async def _manifest(running: RunningAuthority, digest: str) -> Mapping[str, Any] | None:
    return await running.authority.manifests.get(digest) if digest else None


def _identity(text: str) -> str:
    if not _CONTRACT.fullmatch(text):
        raise ConsoleError(
            tr("this is no contract id"), where=text[:80], mend=tr("such as graph@v1")
        )
    return text


def _digest(text: str) -> str:
    if not _DIGEST.fullmatch(text):
        raise ConsoleError(
            tr("this is not a contract's digest"), where=text[:80], mend=tr("it has 43 characters")
        )
    return text


PAGE: Final = Page(
    "registry",
    mark("Registry"),
    show,
    reads={"contract": contract},
    acts={"whatif": whatif},
    group=mark("Services"),
)
