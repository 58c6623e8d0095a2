"""Rules about surfaces: their subjects, capabilities, schema references, templates, transfers."""

from collections.abc import Iterator
from typing import Any, Final

from accord.contracts import subjects
from accord.contracts.manifest import references
from accord.contracts.manifest.pointers import SCALAR, Path, Tracer
from accord.contracts.manifest.view import View


def schema_references(view: View) -> Iterator[tuple[Path, str]]:
    """Schemas that are referred to exist."""
    known = view.declared("schemas")
    for at, name in enumerate(view.section("exports").get("schemas", ())):
        if name not in known:
            yield ("exports", "schemas", str(at)), _no_schema(name)
    for path, name in references.schema_references(view.manifest):
        if name not in known:
            yield (*path, "schema"), _no_schema(name)
    for key, error in view.section("errors").items():
        referred = error.get("schema")
        if references.is_reference(referred) and referred["schema"] not in known:
            yield ("errors", key, "schema", "schema"), _no_schema(referred["schema"])


def _no_schema(name: str) -> str:
    return f"there is no schema {name!r} in `schemas`"


def params_order(view: View) -> Iterator[tuple[Path, str]]:
    """An event's `params` list the pointers of its subject template, in order."""
    for name, event in view.section("events").items():
        if "subject" in event:
            pointers = subjects.template_pointers(event["subject"])
            if event.get("params", []) != pointers:
                yield (
                    ("events", name, "params"),
                    f"`params` must list the pointers of the subject in order: {pointers}",
                )


def template_pointers(view: View) -> Iterator[tuple[Path, str]]:
    """A template's pointers lead to a string or number in every payload (section 8)."""
    tracer = Tracer()
    schemas = view.section("schemas")
    for name, event in view.section("events").items():
        if "{" in event.get("subject", ""):
            referred = event.get("event", {}).get("schema")
            for pointer in subjects.template_pointers(event["subject"]):
                if referred in schemas:
                    fault = tracer.fault(schemas[referred], pointer, SCALAR)
                    if fault is not None:
                        yield ("events", name, "subject"), f"the pointer {pointer!r} {fault}"


def subject_syntax(view: View) -> Iterator[tuple[Path, str]]:
    """Subjects are concrete."""
    for section in ("rpc", "operations", "events", "feeds"):
        templates = section == "events"
        for name, surface in view.section(section).items():
            subject = surface.get("subject")
            if subject is None:
                continue
            if not subjects.is_subject(subject, templates=templates):
                yield (
                    (section, name, "subject"),
                    "a subject is tokens joined by `.`, without wildcards, spaces or empty tokens"
                    + ("; a template token is a whole token, such as {/id}" if templates else ""),
                )


def subject_reserved(view: View) -> Iterator[tuple[Path, str]]:
    """Subjects lie outside the spaces that the server and the protocol keep for themselves."""
    for section in ("rpc", "operations", "events", "feeds"):
        for name, surface in view.section(section).items():
            space = subjects.reserved_space(surface.get("subject", ""))
            if space is not None:
                yield (section, name, "subject"), f"subjects in {space} are not for contracts"


def duplicate_subjects(view: View) -> Iterator[tuple[Path, str]]:
    """No two surfaces of a contract have the same effective subject (section 15)."""
    owners: dict[str, subjects.EffectiveSubject] = {}
    for owned in subjects.effective_subjects(_with_subjects(view)):
        first = owners.setdefault(owned.subject, owned)
        if first is not owned:
            yield (
                (_SECTION[owned.kind], owned.name, "subject"),
                f"{owned.subject!r}, of this {owned.kind}, is the {first.kind} {first.name!r}",
            )


def _with_subjects(view: View) -> dict[str, Any]:
    if not view.faults:
        return view.manifest
    return {
        section: {name: item for name, item in view.section(section).items() if "subject" in item}
        for section in _SECTION.values()
    }


_SECTION: Final = {
    "rpc": "rpc",
    "operation": "operations",
    "control": "operations",
    "event": "events",
    "feed": "feeds",
}


def capability_namespaces(view: View) -> Iterator[tuple[Path, str]]:
    """A contract declares capabilities of its own namespace (section 6.3)."""
    identity = view.manifest.get("id")
    if identity is None:
        return
    prefix = f"{identity.rpartition('@')[0]}::"
    for key in view.section("capabilities"):
        if not key.startswith(prefix) or key == prefix:
            yield ("capabilities", key), f"the capabilities of {identity} are named {prefix}..."


def transfer_stores(view: View) -> Iterator[tuple[Path, str]]:
    """What a transfer sends goes to a store that the contract requests."""
    known = view.declared("resources", "store")
    for path, transfer, _ in _transfers(view):
        if "store" in transfer and transfer["store"] not in known:
            yield (*path, "store"), f"there is no store {transfer['store']!r} in `resources.store`"


def transfer_pointers(view: View) -> Iterator[tuple[Path, str]]:
    """A transfer's pointers lead to what they need in the operation's input."""
    tracer = Tracer()
    for path, transfer, schema in _transfers(view):
        for member, wanted in _TRANSFER_POINTERS.items():
            if member in transfer and schema is not None:
                fault = tracer.fault(schema, transfer[member], wanted)
                if fault is not None:
                    yield (*path, member), f"the pointer {transfer[member]!r} {fault}"


_TRANSFER_POINTERS: Final = {
    "key": frozenset({"string"}),
    "contentType": frozenset({"string"}),
    "metadata": frozenset({"object"}),
}


def _transfers(view: View) -> Iterator[tuple[Path, dict[str, Any], Any]]:
    schemas = view.section("schemas")
    for name, operation in view.section("operations").items():
        if "transfer" in operation:
            schema = schemas.get(operation.get("input", {}).get("schema"))
            yield ("operations", name, "transfer"), operation["transfer"], schema
