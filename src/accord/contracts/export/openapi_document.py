"""The OpenAPI 3.1 document of a contract's RPCs as the bridge over HTTP serves them.

Each RPC is a POST of its payload. Schemas stay as they are: the document names their dialect.
"""

from collections.abc import Mapping
from typing import Any, Final

from accord.contracts.authoring import ANSWERS
from accord.contracts.manifest import digest, is_reference, normalize

RPC_PATH: Final = "/rpc"
"""Below it, RPCs are served by name."""

ERROR_STATUS: Final[Mapping[str, int]] = {
    "ValidationError": 422,
    "UnauthorizedError": 403,
    "NotFoundError": 404,
    "ConflictError": 409,
    "DeadlineError": 504,
    "UnavailableError": 503,
    "UnexpectedError": 502,
}
"""The HTTP status of an error by its type."""

DECLARED_STATUS: Final = 400
"""The HTTP status of errors that a contract declares."""

KEY_HEADER: Final = "Idempotency-Key"
"""The header with the idempotency key of a request."""

_DIALECT: Final = "https://json-schema.org/draft/2019-09/schema"
_ISSUES: Final = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "message": {"type": "string"}},
        "required": ["path", "message"],
    },
}
_ERROR: Final = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "type": {"type": "string"},
        "message": {"type": "string"},
        "issues": _ISSUES,
    },
    "required": ["type", "message"],
}
_KEY: Final = {
    "name": KEY_HEADER,
    "in": "header",
    "required": False,
    "description": "Under one key the request is done once; RPCs that keep no answers refuse it.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 92},
}


def openapi(contract: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a contract; raises ContractError with findings."""
    named = digest(contract)
    manifest = normalize(contract)
    schemas = {**manifest.get("schemas", {})}
    failure = "Error"
    while failure in schemas:
        failure += "_"
    known = sorted(set(ERROR_STATUS.values()) | {401, 413, 429})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": manifest["displayName"] or manifest["id"],
            "version": manifest["id"].rpartition("@")[2],
            "description": manifest["description"],
            "x-contract": {"id": manifest["id"], "digest": named},
        },
        "jsonSchemaDialect": _DIALECT,
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": {
            f"{RPC_PATH}/{name}": {"post": _operation(manifest, name, rpc, failure, known)}
            for name, rpc in sorted(manifest.get("rpc", {}).items())
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {**schemas, failure: _ERROR},
        },
    }


def _operation(
    manifest: Mapping[str, Any], name: str, rpc: Mapping[str, Any], failure: str, known: list[int]
) -> dict[str, Any]:
    docs = rpc.get("docs", {})
    kinds = [each["type"] for each in rpc.get("errors", ())]
    said = {
        "summary": docs.get("summary"),
        "description": docs.get("markdown"),
    }
    responses: dict[str, Any] = {
        "200": {"description": "The answer.", "content": _json(_at(rpc["output"]["schema"]))}
    }
    if kinds:
        responses[str(DECLARED_STATUS)] = {
            "description": f"Declared errors: {', '.join(kinds)}.",
            "content": _json({"anyOf": [_declared(manifest, kind, failure) for kind in kinds]}),
        }
    statuses: dict[int, list[str]] = {status: [] for status in known}
    for kind, status in ERROR_STATUS.items():
        statuses[status].append(kind)
    for status, types in statuses.items():
        responses[str(status)] = {
            "description": f"{' or '.join(types) or 'The request is refused by the bridge'}.",
            "content": _json(_at(failure)),
        }
    keeps = ANSWERS in manifest.get("resources", {}).get("kv", {})
    return {
        "operationId": name,
        **{member: text for member, text in said.items() if text},
        **({"parameters": [_KEY]} if keeps else {}),
        "requestBody": {"required": True, "content": _json(_at(rpc["input"]["schema"]))},
        "responses": responses,
    }


def _declared(manifest: Mapping[str, Any], kind: str, failure: str) -> Any:
    for _, error in sorted(manifest.get("errors", {}).items()):
        if error["type"] == kind and "schema" in error:
            schema = error["schema"]
            own = _at(schema["schema"]) if is_reference(schema) else schema
            typed = {"type": "object", "properties": {"type": {"const": kind}}}
            return {"allOf": [typed, own]}
    return {"allOf": [_at(failure), {"properties": {"type": {"const": kind}}}]}


def _at(name: str) -> dict[str, str]:
    escaped = name.replace("~", "~0").replace("/", "~1")
    return {"$ref": f"#/components/schemas/{escaped}"}


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
