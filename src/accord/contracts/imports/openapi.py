"""OpenAPI 3.0 and 3.1: each operation becomes an RPC.

The RPC's payload is an object: parameters by name, and the request's body as `body`. Responses that
are errors become declared errors, named by their status. Examples, members that begin with `x-` and
descriptions of responses are left out without being listed.
"""

from collections.abc import Mapping
from operator import itemgetter
from typing import Any, Final

from accord.contracts.errors import ContractError
from accord.contracts.imports.document import Draft, Imported, Source, docs_of, is_json, mappings
from accord.kernel.canonical import pointer

_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace")


def read_openapi(document: Any, identity: str) -> Imported:
    """The contract of an OpenAPI document; ContractError if it is none, or has no operation."""
    source = Source(document, "OpenAPI")
    version = str(source.document.get("openapi", ""))
    if not version.startswith(("3.0", "3.1")):
        raise ContractError(
            f"OpenAPI {version or '2'} is not read",
            where="/openapi",
            mend="convert it to OpenAPI 3.1",
        )
    draft = Draft(source, identity, source.document.get("info"), identity)
    source.lose_info()
    source.lose_members(
        "",
        source.document,
        servers="addresses: a contract has subjects, and its deployments say where",
        security="security: a contract has capabilities, which its author chooses",
        webhooks="webhooks: declare events by hand",
        externalDocs="links to other documentation",
    )
    components = source.document.get("components")
    if isinstance(components, dict):
        source.lose_members(
            "/components",
            components,
            securitySchemes="security: a contract has capabilities, which its author chooses",
        )
    for path, found, place in source.entries(source.document.get("paths"), "/paths"):
        for method in _METHODS:
            if isinstance(found.get(method), dict):
                _operation(draft, path, method, found, place)
    if not draft.has_callers:
        raise ContractError("the document has no operation", where="/paths")
    return draft.imported()


def _operation(draft: Draft, path: str, method: str, item: Mapping[str, Any], above: str) -> None:
    source, entry, place = draft.source, item[method], f"{above}/{method}"
    wanted = entry.get("operationId")
    if not isinstance(wanted, str):
        wanted = f"{method} {path}"
    name = draft.name(wanted)
    source.lose_members(
        place,
        entry,
        callbacks="callbacks: declare events by hand",
        security="security: a contract has capabilities, which its author chooses",
        servers="addresses: a contract has subjects, and its deployments say where",
        externalDocs="links to other documentation",
        tags="groups for readers",
    )
    if entry.get("deprecated"):
        source.lose(f"{place}/deprecated", "that it is deprecated")
    members = _parameters(draft, item, above, place)
    body = _body(draft, name, entry, place)
    if body is not None:
        members["body"] = body
    request = draft.own_schema(
        f"{name} Request",
        {
            "type": "object",
            "properties": {key: schema for key, (schema, _) in members.items()},
            "required": [key for key, (_, required) in members.items() if required],
        },
    )
    reply, errors = _responses(draft, name, entry, place)
    draft.contract.rpc(
        name,
        request,
        reply,
        errors=errors or None,
        **docs_of(entry.get("summary"), entry.get("description")),
    )
    draft.has_callers = True


def _parameters(
    draft: Draft, item: Mapping[str, Any], above: str, place: str
) -> dict[str, tuple[Any, bool]]:
    source = draft.source
    members: dict[str, tuple[Any, bool]] = {}
    kinds: dict[str, str] = {}
    for at, owner in ((above, item), (place, item[place.rpartition("/")[2]])):
        listed = owner.get("parameters")
        for number, given in enumerate(listed if isinstance(listed, list) else ()):
            entry, there = source.resolve(given, f"{at}/parameters/{number}")
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                source.lose(there, "a parameter without a name")
                continue
            key, kind = entry["name"], entry.get("in")
            if kind == "cookie":
                source.lose(there, f"the cookie {key!r}")
                continue
            if kind == "header":
                source.lose(there, f"that {key!r} is a header; it is a member of the request")
            if kinds.get(key, kind) != kind:
                source.lose(there, f"two parameters are called {key!r}; this one is kept")
            if {"style", "explode", "allowReserved"} & entry.keys():
                source.lose(there, f"how {key!r} is written in an address")
            schema = entry.get("schema")
            content = entry.get("content")
            if schema is None and isinstance(content, dict) and content:
                schema = next(iter(content.values())).get("schema")
            read = source.schema(True if schema is None else schema, f"{there}/schema")
            said = entry.get("description")
            if isinstance(said, str) and isinstance(read, dict):
                read = {**read, "description": said}
            members[key] = (read, entry.get("required") is True or kind == "path")
            kinds[key] = str(kind)
    return members


def _body(draft: Draft, name: str, entry: Mapping[str, Any], place: str) -> tuple[Any, bool] | None:
    if "requestBody" not in entry:
        return None
    source = draft.source
    body, there = source.resolve(entry["requestBody"], f"{place}/requestBody")
    chosen = _content(draft, body, there, f"the body of {name}")
    if chosen is None:
        return None
    return source.schema(*chosen), body.get("required") is True


def _content(draft: Draft, holder: Any, place: str, what: str) -> tuple[Any, str] | None:
    """The schema of JSON content and its place; other media types are lost."""
    source, found = draft.source, None
    content = holder.get("content") if isinstance(holder, dict) else None
    for kind, media in mappings(content):
        there = f"{place}/content{pointer(kind)}"
        if is_json(kind) and found is None:
            found = (media.get("schema", True), f"{there}/schema")
            source.lose_members(there, media, encoding="how parts of a body are encoded")
        else:
            source.lose(there, f"{what} as {kind}")
    return found


def _responses(
    draft: Draft, name: str, entry: Mapping[str, Any], place: str
) -> tuple[str, list[str]]:
    source, reply, errors = draft.source, None, []
    responses = source.entries(entry.get("responses"), f"{place}/responses")
    for status, response, there in sorted(responses, key=itemgetter(0)):
        source.lose_members(there, response, headers="headers of a response", links="links")
        is_answer = status.startswith("2")
        what = f"the answer {status} of {name}"
        chosen = _content(draft, response, there, what)
        if status.startswith(("1", "3")):
            source.lose(there, f"{what}: neither an answer nor an error")
        elif is_answer and reply is not None:
            source.lose(there, f"{what}: an RPC has one answer")
        elif is_answer:
            schema, at = chosen or ({"type": "null"}, "")
            reply = (
                draft.schema(f"{name} Reply", schema, at)
                if chosen
                else draft.own_schema(f"{name} Reply", schema)
            )
        else:
            errors.append(_error(draft, status, chosen))
    return reply or draft.own_schema(f"{name} Reply", {"type": "null"}), errors


def _error(draft: Draft, status: str, chosen: tuple[Any, str] | None) -> str:
    """Declare the error of a status; the first schema that it has anywhere counts."""
    kind = "HttpError" if status == "default" else f"Http{status.upper()}Error"
    schema = None if chosen is None else draft.schema(kind, *chosen)
    if kind not in draft.error_schemas:
        draft.contract.error(kind, schema)
        draft.error_schemas[kind] = schema
    elif chosen is not None and schema != draft.error_schemas[kind]:
        draft.source.lose(chosen[1], f"{kind} has the members of the first answer of this status")
    return kind
