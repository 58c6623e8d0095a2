"""Pipeline: what has landed and was published, how good it is, a run, the report, what-if."""

import asyncio
import re
import shlex
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, Final

from starlette.responses import FileResponse, Response

from accord.console.children import Work
from accord.console.errors import ConsoleError
from accord.console.gold import Published, look
from accord.console.page import Page, Visit
from accord.console.stream import Piece
from accord.kernel import canonical
from accord.kernel.clock import format_time
from accord.kernel.errors import AccordError
from accord.pipeline.layout import Layout

_REPORT_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"
)
_STEP_SECONDS: Final = 0.5
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
_SEQUENCE: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
_POLICY: Final = """{"/relay/policy": [
  {"instanceId": "echo", "platform": "webchat", "requireAddress": true}
]}"""


async def show(visit: Visit) -> Response:
    """How the pipeline stands, and the command that runs or ran last."""
    published: Published | None = None
    missing: AccordError | None = None
    try:
        published = await asyncio.to_thread(look, _layout(visit), visit.parts.landing)
    except AccordError as error:
        missing = error
    report = _report(visit)
    return visit.show(
        "pipeline.html",
        published=published,
        missing=missing,
        work=_told(visit),
        report=format_time(report.stat().st_mtime) if report.is_file() else None,
        policy=_POLICY,
    )


async def live(visit: Visit) -> Response:
    """How the command that runs is doing, until it has ended."""

    async def pieces() -> AsyncGenerator[Piece, None]:
        seen: Any = None
        while True:
            told = _told(visit)
            if told != seen:
                seen = told
                yield Piece("work", visit.part("pipeline_work.html", work=told))
            if told is None or told["has_ended"]:
                yield Piece("end")
                return
            await asyncio.sleep(_STEP_SECONDS)

    return visit.stream(pieces())


async def report(visit: Visit) -> Response:
    """The report, in a room of its own: it brings its style along, and can do nothing."""
    file = _report(visit)
    if not file.is_file():
        raise ConsoleError("there is no report yet", mend="make one, on Pipeline", status=404)
    headers = {"content-security-policy": _REPORT_POLICY}
    return FileResponse(file, media_type="text/html; charset=utf-8", headers=headers)


async def run(visit: Visit) -> Response:
    """Bring the tables up to what has landed."""
    landing = visit.parts.landing
    where = [] if landing is None else [f"--landing={landing}"]
    return await _start(visit, "accord pipeline run", ["run"], where)


async def make_report(visit: Visit) -> Response:
    """Make the report of what is published."""
    command = "accord pipeline report --out report.html"
    return await _start(visit, command, ["report"], [f"--out={_report(visit)}"])


async def policy(visit: Visit) -> Response:
    """What the delivery gate would have done under another policy."""
    given = _document(visit, "policy", "The policy")
    command = "accord pipeline whatif policy policy.json"
    return await _start(visit, command, ["whatif", "policy"], ["-"], given)


async def contract(visit: Visit) -> Response:
    """Which recorded calls another contract would have refused."""
    given = _document(visit, "contract", "The contract")
    command = "accord pipeline whatif contract contract.json"
    return await _start(visit, command, ["whatif", "contract"], ["-"], given)


async def revoke(visit: Visit) -> Response:
    """What revoking a member would void."""
    node = _name(visit.form.needed("node", "The member"))
    upto, community = visit.form.text("upto"), visit.form.text("community")
    command = f"accord pipeline whatif revoke {shlex.quote(node)}"
    options = []
    if upto:
        if not _SEQUENCE.fullmatch(upto):
            raise ConsoleError("its last event is told by a number", where=upto[:40])
        options.append(f"--upto={upto}")
        command += f" --upto {upto}"
    if community:
        options.append(f"--community={_name(community)}")
    # What follows the dashes is no option, whatever it is called.
    return await _start(visit, command, ["whatif", "revoke"], [*options, "--", node])


async def stop(visit: Visit) -> Response:
    """End the command that runs; what was published stands."""
    await visit.parts.children.stop()
    return visit.done("It was stopped; what was published stands.")


async def _start(
    visit: Visit, command: str, verbs: Sequence[str], options: Sequence[str], given: bytes = b""
) -> Response:
    whole = ["pipeline", *verbs, f"--home={visit.parts.home}", *options]
    await visit.parts.children.start(command, whole, given)
    return visit.done(f"Started: {command}")


def _told(visit: Visit) -> dict[str, Any] | None:
    work: Work | None = visit.parts.children.latest
    if work is None:
        return None
    return {
        "command": work.command,
        "began_at": format_time(work.began_at),
        "step": work.step,
        "code": work.code,
        "has_ended": work.has_ended,
        "printed": work.printed if work.has_ended else "",
        "said": list(work.said),
        # A what-if that finds failing calls says so by its exit code, and has an answer.
        "is_well": work.code == 0 or bool(work.code == 1 and work.printed),
    }


def _document(visit: Visit, name: str, label: str) -> bytes:
    """JSON that somebody typed or pasted; what it means is for the command to say."""
    try:
        return canonical.encode(canonical.decode(visit.form.needed(name, label).encode()))
    except canonical.CanonicalError as error:
        raise ConsoleError(f"{label} is no JSON: {error}"[:500], mend="correct it") from None


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ConsoleError("this cannot be a name", where=repr(text[:40]))
    return text


def _layout(visit: Visit) -> Layout:
    return Layout(visit.parts.home / "pipeline")


def _report(visit: Visit) -> Path:
    return _layout(visit).root / "report.html"


PAGE: Final = Page(
    "pipeline",
    "Pipeline",
    show,
    reads={"live": live, "report": report},
    acts={
        "run": run,
        "report": make_report,
        "policy": policy,
        "contract": contract,
        "revoke": revoke,
        "stop": stop,
    },
)
