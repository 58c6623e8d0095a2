"""Services and jobs: deployments, their instances, and jobs.

Services are called in the session of the home's shell, which the operator admits once.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from starlette.responses import Response

from accord.authority.assembly import RunningAuthority
from accord.authority.contracts import JOBS_ID as JOBS
from accord.authority.contracts import builtins
from accord.console.messages import mark, tr, word
from accord.console.page import Page, Visit
from accord.console.parts import ConsoleParts
from accord.console.sessions import ConsoleError
from accord.contracts.session_proof import session_key
from accord.fabric import Authority, Service
from accord.fabric.app import EVERY, SHELL, shell_contract
from accord.kernel.clock import format_time
from accord.kernel.errors import AccordError
from accord.kernel.signing import SigningError, SigningKey

_PATIENCE: Final = 10.0


async def shell_is_allowed(parts: ConsoleParts, running: RunningAuthority) -> bool:
    """Whether the shell of the home may call services."""
    key = await asyncio.to_thread(_load_key, _key_file(parts))
    return key is not None and session_key(key) in await _shell_keys(running)


async def allow_shell(parts: ConsoleParts, running: RunningAuthority) -> None:
    """Admit the shell of the home, or raise the authority's error."""
    await running.operating.do("deploy", {"deployment": SHELL})
    await running.operating.do("deployments/set", {"deployment": SHELL, "calls": [EVERY]})
    key = session_key(await asyncio.to_thread(_make_key, _key_file(parts)))
    if key not in await _shell_keys(running):
        instance = {"deployment": SHELL, "key": key, "name": f"shell-{key[:8]}"}
        await running.operating.do("instances/add", instance)


async def ask_service(
    parts: ConsoleParts, target: Mapping[str, Any], name: str, payload: Any
) -> Any:
    """Call an RPC of a contract, or raise its error."""
    key = await asyncio.to_thread(_load_key, _key_file(parts))
    if key is None:
        raise ConsoleError(
            tr("the shell of this home may not call yet"),
            mend=tr("admit it on the page Services"),
            status=409,
        )
    where = Authority(_reachable(parts.address), _PATIENCE)
    service = Service(shell_contract(target), key=key, authority=where)
    async with parts.turns.turn(), service.connect() as session:
        return await session.client(target).call(name, payload)


async def _shell_keys(running: RunningAuthority) -> set[str]:
    told = await running.operating.do("deployments/list", {})
    if SHELL not in {each["id"] for each in told["deployments"] if each["calls"]}:
        return set()
    told = await running.operating.do("instances/list", {"deployment": SHELL})
    return {each["key"] for each in told["instances"] if not each["disabled"]}


def _key_file(parts: ConsoleParts) -> Path:
    return parts.home / "keys" / "shell.ed25519"


def _load_key(file: Path) -> SigningKey | None:
    return SigningKey.load(file) if file.exists() else None


def _make_key(file: Path) -> SigningKey:
    if file.exists():
        return SigningKey.load(file)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SigningError(
            tr("the folder of the key cannot be made ({why})", why=error.strerror),
            where=str(file.parent),
        ) from None
    return SigningKey.create(file)


def _reachable(address: str) -> str:
    """A wildcard address includes loopback."""
    return address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


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
_BAD: Final = frozenset({"failed", "dead", "expired", "stale", "retry"})
_SAID: Final = 500
_HAPPENED: Final = {
    "created": mark("Submitted"),
    "started": mark("Begun"),
    "progress": mark("Progress"),
    "logged": mark("Said"),
    "retry": mark("Failed, and will be tried again"),
    "completed": mark("Completed"),
    "failed": mark("Failed"),
    "dead": mark("Failed for good"),
    "expired": mark("Too late"),
    "stale": mark("Its worker went away"),
    "cancelled": mark("Cancelled"),
    "retried": mark("Asked for again by an operator"),
    "dismissed": mark("Dismissed by an operator"),
}


async def show(visit: Visit) -> Response:
    """Show every deployment with its instances and offers."""
    running = visit.parts.authority()
    if running is None:
        return visit.show("services.html", deployments=None)
    is_allowed, missing = False, None
    try:
        is_allowed = await shell_is_allowed(visit.parts, running)
    except AccordError as error:
        missing = error  # its key is damaged, which is no reason to hide the rest
    return visit.show(
        "services.html",
        deployments=await _deployments(running),
        is_allowed=is_allowed,
        missing=missing,
    )


async def jobs(visit: Visit) -> Response:
    """Show the latest jobs, by service and state."""
    service, state = visit.query("service")[:256], visit.query("state")
    if state and state not in _STATES:
        raise ConsoleError(tr("there is no such state"), where=state[:40], mend=", ".join(_STATES))
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


async def job(visit: Visit) -> Response:
    """Show what happened to a job, event by event, with its tries."""
    named, history = visit.query("id"), visit.authority().jobs
    if not _JOB.fullmatch(named):
        raise ConsoleError(tr("this is not a job's id"), where=named[:80])
    steps = [] if history is None else await history.steps(named)
    if not steps:
        raise ConsoleError(tr("no such job is known"), where=named, status=404)
    return visit.show(
        "job.html",
        named=named,
        steps=[
            {
                "at": each.at,
                "what": word(_HAPPENED.get(each.happened, each.happened)),
                "tries": each.tries,
                "why": _why(each.error)[:_SAID],
                "progress": _said(each.progress),
                "logs": [_said(line) for line in each.logs],
                "is_well": each.happened not in _BAD,
            }
            for each in steps
        ],
        state=steps[-1].state,
        is_well=steps[-1].state not in _BAD,
    )


def _said(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text[:_SAID]


async def allow(visit: Visit) -> Response:
    """Admit the shell of this home, which is needed to list jobs."""
    await allow_shell(visit.parts, visit.authority())
    return visit.done(tr("The shell of this home may call now."))


async def retry(visit: Visit) -> Response:
    """Retry a job."""
    told = await _ask(visit, "Jobs.Retry", {"jobId": _job(visit)})
    return visit.done(
        tr("{job} is {state}.", job=told["job"]["jobId"], state=word(told["job"]["state"])),
        path=_jobs(visit),
    )


async def dismiss(visit: Visit) -> Response:
    """Dismiss a job that failed for good."""
    told = await _ask(visit, "Jobs.Dismiss", {"jobId": _job(visit)})
    return visit.done(
        tr("{job} is {state}.", job=told["job"]["jobId"], state=word(told["job"]["state"])),
        path=_jobs(visit),
    )


async def reconcile(visit: Visit) -> Response:
    """Reconcile a deployment now."""
    named = visit.form.needed("deployment", tr("The deployment"))
    told = await visit.authority().operating.do(
        "reconcile", {"deployment": named, "by": visit.actor}
    )
    [made] = told["reconciled"]
    if made["status"] == "failed":
        raise ConsoleError(
            tr("{named} is not applied yet: {why}", named=named[:80], why=made["why"])
        )
    return visit.done(tr("{name} is {state}.", name=named, state=word(made["status"])))


async def switch(visit: Visit) -> Response:
    """Enable or disable a deployment."""
    named = visit.form.needed("deployment", tr("The deployment"))
    wanted = visit.form.text("disabled")
    if wanted not in ("yes", "no"):
        raise ConsoleError(tr("say whether it may run"), where="disabled")
    said = {"deployment": named, "disabled": wanted == "yes", "by": visit.actor}
    await visit.authority().operating.do("deployments/set", said)
    return visit.done(
        tr("{name} is disabled.", name=named)
        if wanted == "yes"
        else tr("{name} is enabled.", name=named)
    )


async def narrow(visit: Visit) -> Response:
    """Revoke a surface or a capability that was accepted for a deployment."""
    named = visit.form.needed("deployment", tr("The deployment"))
    surface, capability = visit.form.text("surface"), visit.form.text("capability")
    if bool(surface) == bool(capability):
        raise ConsoleError(tr("say which surface or capability is taken back"), where="surface")
    said = {
        "deployment": named,
        "surfaces": [surface] if surface else [],
        "capabilities": [capability] if capability else [],
        "by": visit.actor,
    }
    await visit.authority().operating.do("deployments/narrow", said)
    return visit.done(
        tr("{named} may no longer use {capability}.", named=named, capability=surface or capability)
    )


async def _deployments(running: RunningAuthority) -> list[dict[str, Any]]:
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
    return await ask_service(visit.parts, builtins()[JOBS], name, payload)


def _job(visit: Visit) -> str:
    named = visit.form.needed("job", tr("The job"))
    if not _JOB.fullmatch(named):
        raise ConsoleError(tr("this is not a job's id"), where=named[:80])
    return named


def _jobs(visit: Visit) -> str:
    return f"{visit.page.path}/jobs"


def _why(error: Any) -> str:
    if isinstance(error, dict):
        return str(error.get("message", ""))
    return "" if error is None else str(error)


PAGE: Final = Page(
    "services",
    mark("Services"),
    show,
    reads={"jobs": jobs, "job": job},
    acts={
        "allow": allow,
        "retry": retry,
        "dismiss": dismiss,
        "reconcile": reconcile,
        "switch": switch,
        "narrow": narrow,
    },
    group=mark("Services"),
)
