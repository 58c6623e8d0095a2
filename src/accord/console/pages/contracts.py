"""Contracts: active contracts, their content and differences, and plans to decide on."""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from starlette.responses import Response

from accord.authority import revisions, store
from accord.authority.assembly import RunningAuthority
from accord.authority.contracts import builtins
from accord.console.messages import mark, tr, word
from accord.console.page import Page, Visit
from accord.console.sessions import ConsoleError
from accord.contracts.compatibility import CompatibilityReport, Relation, compare
from accord.kernel.clock import format_time

_SURFACES: Final = {
    "rpc": ("RPC", ("input", "output")),
    "operations": ("operation", ("input", "progress", "output")),
    "events": ("event", ("event",)),
    "feeds": ("feed", ("input", "event")),
}
_SIGNS: Final = {"added": "+", "changed": "~", "removed": "-"}
_GRAVE: Final = frozenset({"breaking", "unproven", "migration"})


@dataclass(frozen=True, slots=True)
class OfferedSurface:
    """A surface that a contract offers, and the capabilities that its use needs."""

    kind: str
    name: str
    payloads: str
    needed: str


@dataclass(frozen=True, slots=True)
class Need:
    """Something that a contract needs, of another contract or of the platform."""

    kind: str
    name: str
    what: str


@dataclass(frozen=True, slots=True)
class ContractDifference:
    """One change between two contracts: rule, place, and a payload that shows it."""

    category: str
    is_grave: bool
    pointer: str
    message: str
    rule: str
    witness: str | None


def offered_surfaces(manifest: Mapping[str, Any]) -> list[OfferedSurface]:
    """Return every surface of a contract."""
    return [
        OfferedSurface(
            kind,
            name,
            ", ".join(f"{part} {surface[part]['schema']}" for part in parts if part in surface),
            "; ".join(
                f"{action}: {', '.join(keys) or tr('everybody')}"
                for action, keys in surface.get("capabilities", {}).items()
            )
            or tr("everybody"),
        )
        for section, (kind, parts) in _SURFACES.items()
        for name, surface in sorted(manifest.get(section, {}).items())
    ]


def contract_needs(manifest: Mapping[str, Any]) -> list[Need]:
    """Return what a contract uses of others, and the resources that it needs."""
    return [*_uses(manifest.get("uses", {})), *_resources(manifest)]


def pretty_json(value: Any) -> str:
    """Format JSON."""
    return json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True)


def report_differences(report: CompatibilityReport) -> list[ContractDifference]:
    """Return the findings of a comparison, the most severe first."""
    return [_difference(each.to_dict()) for each in (*report.findings, *report.updates)]


def plan_findings(delta: Mapping[str, Any]) -> list[ContractDifference]:
    """Return the findings of the comparison behind a plan."""
    return [_difference(each) for each in delta.get("findings", ())]


def plan_changes(delta: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return what a plan adds, changes and removes; parts without changes are left out."""
    found = [
        (part, list(_lines(value)))
        for part, value in delta.items()
        if part not in ("contract", "findings")
    ]
    return [(part, lines) for part, lines in found if lines]


def _uses(declared: Mapping[str, Any]) -> Iterator[Need]:
    for group in ("required", "optional"):
        for _alias, use in sorted(declared.get(group, {}).items()):
            used = ", ".join(
                f"{action} {name}"
                for section in _SURFACES
                for action, names in use.get(section, {}).items()
                for name in names
            )
            yield Need(tr("contract, {group}", group=word(group)), use["contract"], used)


def _resources(manifest: Mapping[str, Any]) -> Iterator[Need]:
    resources = manifest.get("resources", {})
    for kind, declared in (
        (tr("key-value bucket"), resources.get("kv", {})),
        (tr("object store"), resources.get("store", {})),
        (tr("job queue"), manifest.get("jobs", {})),
        (tr("event consumer"), manifest.get("eventConsumers", {})),
        (tr("state"), manifest.get(tr("state"), {})),
    ):
        for name, entry in sorted(declared.items()):
            yield Need(kind, name, str(entry.get("purpose", "")))


def _difference(change: Mapping[str, Any]) -> ContractDifference:
    category = str(change.get("category", ""))
    return ContractDifference(
        category,
        category in _GRAVE,
        str(change.get("pointer") or tr("(whole contract)")),
        str(change["message"]),
        str(change["rule"]),
        pretty_json(change["witness"]) if "witness" in change else None,
    )


def _lines(value: Any) -> Iterator[str]:
    """Yield the lines of a part of a plan."""
    if isinstance(value, Mapping) and value.keys() <= _SIGNS.keys():
        for how, some in value.items():
            yield from (f"{_SIGNS[how]} {_line(each)}" for each in some)
    elif isinstance(value, list | tuple):
        yield from map(_line, value)
    elif value:
        yield _line(value)


def _line(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    if {"kind", "contract", "alias"} <= value.keys():
        return f"{value['kind']} {value['alias']} of {value['contract']}"
    return ", ".join(f"{name} {each}" for name, each in sorted(value.items()) if each is not None)


_DIGEST: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_PLAN: Final = re.compile(r"[0-9A-Z]{26}", re.ASCII)
_RELATIONS: Final = ("replacement", "coexistence")
_PLANS: Final = 100
_REVISIONS: Final = 40


async def show(visit: Visit) -> Response:
    """Show the catalog with the offers, pending plans, and recent decisions."""
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
    """Show what a contract offers and needs, who offers it, and its other versions."""
    running = visit.authority()
    digest = _named(visit.query("digest"))
    found = await _manifest(running, digest)
    identity = found["id"]
    known = await running.authority.store.read(lambda c: store.read_manifest_digests(c, identity))
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
        offered=offered_surfaces(found),
        needed=contract_needs(found),
        text=pretty_json(found),
    )


async def manifest(visit: Visit) -> Response:
    """Download a contract as a file."""
    digest = _named(visit.query("digest"))
    found = await _manifest(visit.authority(), digest)
    headers = {"content-disposition": f'attachment; filename="{digest[:12]}.contract.json"'}
    text = pretty_json(found)
    return Response(text, headers=headers, media_type="application/json")


async def diff(visit: Visit) -> Response:
    """Compare a contract with another of its lineage."""
    running = visit.authority()
    old, new = _named(visit.query("old")), _named(visit.query("new"))
    relation = visit.query("relation") or _RELATIONS[0]
    if relation not in _RELATIONS:
        raise ConsoleError(
            tr("there is no such relation"), where=relation[:40], mend=" or ".join(_RELATIONS)
        )
    before, after = await _manifest(running, old), await _manifest(running, new)
    # The proof may take a moment.
    report = await asyncio.to_thread(compare, before, after, cast("Relation", relation))
    return visit.show(
        "contract_diff.html",
        identity=after["id"],
        old=old,
        new=new,
        relation=relation,
        relations=_RELATIONS,
        report=report,
        differences=report_differences(report),
    )


async def plan(visit: Visit) -> Response:
    """Show what a plan would change, with the forms to decide."""
    running = visit.authority()
    found = (await running.operating.do("plans/show", {"plan": _plan(visit.query("id"))}))["plan"]
    return visit.show(
        "plan.html",
        plan=found,
        at=format_time(found["created_at"]),
        previous=found["delta"].get("contract", {}).get("previous"),
        changes=plan_changes(found["delta"]),
        differences=plan_findings(found["delta"]),
    )


async def accept(visit: Visit) -> Response:
    """Accept a plan."""
    named = _plan(visit.form.needed("plan", tr("The plan")))
    if visit.form.text("sure") != "yes":
        raise ConsoleError(
            tr("nothing was accepted"), mend=tr("look at the plan and tick the box, too")
        )
    told = await visit.authority().operating.do("plans/accept", {"plan": named, "by": visit.actor})
    return visit.done(
        tr("Accepted for {deployment}; it is being applied.", deployment=told["plan"]["deployment"])
    )


async def reject(visit: Visit) -> Response:
    """Reject a plan."""
    named = _plan(visit.form.needed("plan", tr("The plan")))
    said = {"plan": named, "by": visit.actor}
    if why := visit.form.text("why"):
        said["why"] = why
    told = await visit.authority().operating.do("plans/reject", said)
    return visit.done(
        tr("Rejected for {deployment}; nothing has changed.", deployment=told["plan"]["deployment"])
    )


async def _manifest(running: RunningAuthority, digest: str) -> Mapping[str, Any]:
    found = await running.authority.manifests.get(digest)
    if found is None:
        raise ConsoleError(
            tr("no contract of this digest is known here"),
            where=digest,
            mend=tr("Contracts lists those that are"),
            status=404,
        )
    return found


def _named(digest: str) -> str:
    if not _DIGEST.fullmatch(digest):
        raise ConsoleError(
            tr("this is not a contract's digest"),
            where=digest[:80],
            mend=tr("it has 43 characters"),
        )
    return digest


def _plan(identity: str) -> str:
    if not _PLAN.fullmatch(identity):
        raise ConsoleError(tr("this is not a plan's id"), where=identity[:80])
    return identity


PAGE: Final = Page(
    "contracts",
    mark("Contracts"),
    show,
    reads={"contract": contract, "manifest": manifest, "diff": diff, "plan": plan},
    acts={"accept": accept, "reject": reject},
    group=mark("Services"),
)
