"""Services and jobs: what is deployed, who runs it and is there, and the work that waits."""

import re
from typing import Any, Final

from starlette.responses import Response

from accord.authority.assembly import Running
from accord.authority.contracts import builtins
from accord.authority.contracts.jobs import ID as JOBS
from accord.console import shell
from accord.console.errors import ConsoleError
from accord.console.page import Page, Visit
from accord.kernel.clock import format_time
from accord.kernel.errors import AccordError

_JOB: Final = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
_SHOWN: Final = 100
_STATES: Final = (
    "pending",
    "active",
    "retry",
    "completed",
    "failed",
    "dead",
    "expired",
    "cancelled",
    "dismissed",
)
_RETRIED: Final = frozenset({"failed", "dead", "expired", "cancelled", "dismissed"})
_DISMISSED: Final = frozenset({"failed", "dead", "expired"})


async def show(visit: Visit) -> Response:
    """Every deployment with its instances and offers."""
    running = visit.parts.authority()
    if running is None:
        return visit.show("services.html", deployments=None)
    is_allowed, missing = False, None
    try:
        is_allowed = await shell.is_allowed(visit.parts, running)
    except AccordError as error:
        missing = error  # its key is damaged, which is no reason to hide the rest
    return visit.show(
        "services.html",
        deployments=await _deployments(running),
        is_allowed=is_allowed,
        missing=missing,
    )


async def jobs(visit: Visit) -> Response:
    """The latest jobs, of everybody or of one service, in one state or in any."""
    service, state = visit.query("service")[:256], visit.query("state")
    if state and state not in _STATES:
        raise ConsoleError("there is no such state", where=state[:40], mend=", ".join(_STATES))
    asked: dict[str, Any] = {"limit": _SHOWN}
    if service:
        asked["service"] = service
    if state:
        asked["state"] = [state]
    missing: AccordError | None = None
    found: list[dict[str, Any]] = []
    try:
        found = (await _ask(visit, "Jobs.List", asked))["jobs"]
    except AccordError as error:
        missing = error
    return visit.show(
        "jobs.html",
        jobs=[
            {
                **each,
                "why": _why(each.get("error")),
                "is_well": each["state"] not in ("failed", "dead", "expired"),
                "can_retry": each["state"] in _RETRIED,
                "can_dismiss": each["state"] in _DISMISSED,
            }
            for each in found
        ],
        missing=missing,
        service=service,
        state=state,
        states=_STATES,
    )


async def allow(visit: Visit) -> Response:
    """Let the shell of this home call services, which is how jobs are seen."""
    await shell.allow(visit.parts, visit.authority())
    return visit.done("The shell of this home may call now.")


async def retry(visit: Visit) -> Response:
    """Have a job done again."""
    told = await _ask(visit, "Jobs.Retry", {"jobId": _job(visit)})
    return visit.done(f"{told['job']['jobId']} is {told['job']['state']}.", path=_jobs(visit))


async def dismiss(visit: Visit) -> Response:
    """Let a job that failed for good rest."""
    told = await _ask(visit, "Jobs.Dismiss", {"jobId": _job(visit)})
    return visit.done(f"{told['job']['jobId']} is {told['job']['state']}.", path=_jobs(visit))


async def reconcile(visit: Visit) -> Response:
    """Make what was accepted for a deployment real now."""
    named = visit.form.needed("deployment", "The deployment")
    told = await visit.authority().operating.do(
        "reconcile", {"deployment": named, "by": visit.actor}
    )
    [made] = told["reconciled"]
    if made["status"] == "failed":
        raise ConsoleError(f"{named[:80]} is not real yet: {made['why']}")
    return visit.done(f"{named} is {made['status']}.")


async def switch(visit: Visit) -> Response:
    """Let a deployment run, or let it run no longer."""
    named = visit.form.needed("deployment", "The deployment")
    wanted = visit.form.text("disabled")
    if wanted not in ("yes", "no"):
        raise ConsoleError("say whether it may run", where="disabled")
    said = {"deployment": named, "disabled": wanted == "yes", "by": visit.actor}
    await visit.authority().operating.do("deployments/set", said)
    return visit.done(f"{named} is {'disabled' if wanted == 'yes' else 'enabled'}.")


async def _deployments(running: Running) -> list[dict[str, Any]]:
    do = running.operating.do
    instances = (await do("instances/list", {}))["instances"]
    offers = (await do("offers/list", {}))["offers"]
    unreal = set((await do("status", {}))["to_reconcile"])
    return [
        {
            **each,
            "is_real": each["id"] not in unreal,
            "contracts": sorted(each["desired"]["contracts"].items()),
            "instances": [it for it in instances if it["deployment"] == each["id"]],
            "offers": [
                {**it, "until": format_time(it["expires_at"])}
                for it in offers
                if it["deployment"] == each["id"]
            ],
        }
        for each in (await do("deployments/list", {}))["deployments"]
    ]


async def _ask(visit: Visit, name: str, payload: dict[str, Any]) -> Any:
    visit.authority()
    return await shell.ask(visit.parts, builtins()[JOBS], name, payload)


def _job(visit: Visit) -> str:
    named = visit.form.needed("job", "The job")
    if not _JOB.fullmatch(named):
        raise ConsoleError("this is not a job's id", where=named[:80])
    return named


def _jobs(visit: Visit) -> str:
    return f"{visit.page.path}/jobs"


def _why(error: Any) -> str:
    if isinstance(error, dict):
        return str(error.get("message", ""))
    return "" if error is None else str(error)


PAGE: Final = Page(
    "services",
    "Services",
    show,
    reads={"jobs": jobs},
    acts={
        "allow": allow,
        "retry": retry,
        "dismiss": dismiss,
        "reconcile": reconcile,
        "switch": switch,
    },
)
