"""Contracts: what is active, what a contract says, how two differ, and plans to decide on."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final, cast

from starlette.responses import Response

from accord.authority.assembly import Running
from accord.authority.contracts import builtins
from accord.authority.stored import manifests, revisions
from accord.console import agreements
from accord.console.errors import ConsoleError
from accord.console.page import Page, Visit
from accord.contracts.compatibility import Relation, compare
from accord.kernel.clock import format_time

_DIGEST: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_PLAN: Final = re.compile(r"[0-9A-Z]{26}", re.ASCII)
_RELATIONS: Final = ("replacement", "coexistence")
_PLANS: Final = 100
_REVISIONS: Final = 40


async def show(visit: Visit) -> Response:
    """The catalog with who offers what, the plans that wait, and what was decided lately."""
    running = visit.parts.authority()
    if running is None:
        return visit.show("contracts.html", contracts=None)
    told = await running.operating.do("catalog", {})
    plans = (await running.operating.do("plans/list", {"state": "pending"}))["plans"]
    offers = (await running.operating.do("offers/list", {}))["offers"]
    head = await running.authority.store.read(revisions.current)
    since = {"since": max(0, head - _REVISIONS)}
    history = (await running.operating.do("history", since))["history"]
    named = [(each["digest"], each["id"]) for each in told["catalog"]["contracts"]]
    named += [(each["digest"], each["contractId"]) for each in history if each["digest"]]
    return visit.show(
        "contracts.html",
        contracts=[
            {
                **each,
                "is_built_in": each["id"] in builtins(),
                "offered_by": sorted(
                    {
                        offer["deployment"]
                        for offer in offers
                        if offer["contract_id"] == each["id"] and offer["live"]
                    }
                ),
            }
            for each in told["catalog"]["contracts"]
        ],
        issues=told["issues"],
        plans=[{**each, "at": format_time(each["created_at"])} for each in plans[:_PLANS]],
        more=max(0, len(plans) - _PLANS),
        history=history[::-1],
        digests=sorted(set(named), key=lambda each: each[::-1]),
    )


async def contract(visit: Visit) -> Response:
    """What a contract offers and needs, who offers it, and its other versions."""
    running = visit.authority()
    digest = _named(visit.query("digest"))
    found = await _manifest(running, digest)
    identity = found["id"]
    known = await running.authority.store.read(lambda c: manifests.read_digests(c, identity))
    offers = (await running.operating.do("offers/list", {}))["offers"]
    return visit.show(
        "contract.html",
        contract=found,
        digest=digest,
        others=[each for each in known if each != digest],
        offers=[
            {**each, "until": format_time(each["expires_at"])}
            for each in offers
            if each["digest"] == digest
        ],
        offered=agreements.offered(found),
        needed=agreements.needed(found),
        text=agreements.laid_out(found),
    )


async def manifest(visit: Visit) -> Response:
    """A contract as a file, for the commands that read one."""
    digest = _named(visit.query("digest"))
    found = await _manifest(visit.authority(), digest)
    headers = {"content-disposition": f'attachment; filename="{digest[:12]}.contract.json"'}
    text = agreements.laid_out(found)
    return Response(text, headers=headers, media_type="application/json")


async def diff(visit: Visit) -> Response:
    """What a contract means for those who rely on another of its lineage."""
    running = visit.authority()
    old, new = _named(visit.query("old")), _named(visit.query("new"))
    relation = visit.query("relation") or _RELATIONS[0]
    if relation not in _RELATIONS:
        raise ConsoleError(
            "there is no such relation", where=relation[:40], mend=" or ".join(_RELATIONS)
        )
    before, after = await _manifest(running, old), await _manifest(running, new)
    # It proves, and may take a moment.
    report = await asyncio.to_thread(compare, before, after, cast("Relation", relation))
    return visit.show(
        "contract_diff.html",
        identity=after["id"],
        old=old,
        new=new,
        relation=relation,
        relations=_RELATIONS,
        report=report,
        differences=agreements.differences(report),
    )


async def plan(visit: Visit) -> Response:
    """What a plan would change, and the choice."""
    running = visit.authority()
    found = (await running.operating.do("plans/show", {"plan": _plan(visit.query("id"))}))["plan"]
    return visit.show(
        "plan.html",
        plan=found,
        at=format_time(found["created_at"]),
        previous=found["delta"].get("contract", {}).get("previous"),
        changes=agreements.changes(found["delta"]),
        differences=agreements.findings(found["delta"]),
    )


async def accept(visit: Visit) -> Response:
    """Accept a plan that somebody has looked at."""
    named = _plan(visit.form.needed("plan", "The plan"))
    if visit.form.text("sure") != "yes":
        raise ConsoleError("nothing was accepted", mend="look at the plan and tick the box, too")
    told = await visit.authority().operating.do("plans/accept", {"plan": named, "by": visit.actor})
    return visit.done(f"Accepted for {told['plan']['deployment']}; it is made real now.")


async def reject(visit: Visit) -> Response:
    """Reject a plan: nothing changes."""
    named = _plan(visit.form.needed("plan", "The plan"))
    said = {"plan": named, "by": visit.actor, "why": visit.form.text("why")}
    told = await visit.authority().operating.do("plans/reject", said)
    return visit.done(f"Rejected for {told['plan']['deployment']}; nothing has changed.")


async def _manifest(running: Running, digest: str) -> Mapping[str, Any]:
    found = await running.authority.contract(digest)
    if found is None:
        raise ConsoleError(
            "no contract of this digest is known here",
            where=digest,
            mend="Contracts lists those that are",
            status=404,
        )
    return found


def _named(digest: str) -> str:
    if not _DIGEST.fullmatch(digest):
        raise ConsoleError(
            "this is not a contract's digest", where=digest[:80], mend="it has 43 characters"
        )
    return digest


def _plan(identity: str) -> str:
    if not _PLAN.fullmatch(identity):
        raise ConsoleError("this is not a plan's id", where=identity[:80])
    return identity


PAGE: Final = Page(
    "contracts",
    "Contracts",
    show,
    reads={"contract": contract, "manifest": manifest, "diff": diff, "plan": plan},
    acts={"accept": accept, "reject": reject},
)
