"""Errors as OpenAI's API writes them, so that its clients raise what they raise there."""

from typing import Any, Final

from starlette.responses import JSONResponse

from accord.community.errors import Code, CommunityError

_INVALID: Final = "invalid_request_error"
_SERVER: Final = "server_error"
_LIMIT: Final = "requests"
# Type and code; what OpenAI has no code for keeps the bus's.
_KINDS: Final[dict[Code, tuple[str, str]]] = {
    Code.BAD_REQUEST: (_INVALID, "invalid_value"),
    Code.SCHEMA_MISMATCH: (_INVALID, "invalid_value"),
    Code.UNAUTHORIZED: (_INVALID, "invalid_api_key"),
    Code.NOT_FOUND: (_INVALID, "not_found"),
    Code.NOT_IMPLEMENTED: (_INVALID, "model_not_found"),  # listed, and its file or server is gone
    Code.CAPACITY_EXCEEDED: (_LIMIT, "rate_limit_exceeded"),
    Code.RATE_LIMITED: (_LIMIT, "rate_limit_exceeded"),
}
_FORBIDDEN: Final = 403


class OpenAiError(CommunityError):
    """An error for which OpenAI's API has a code.

    Args:
        code: Gives the HTTP status, unless `status` does.
        what: A whole sentence; clients show it unchanged.
        param: The wrong member of the request.
    """

    def __init__(
        self,
        code: Code,
        what: str,
        *,
        param: str | None,
        openai_code: str,
        status: int | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(code, what, where=param, details=details)
        self.openai_code = openai_code
        self.status = code.status if status is None else status


def unknown_model(name: str) -> OpenAiError:
    """Return the error for a model that is not offered."""
    return OpenAiError(
        Code.NOT_FOUND,
        f"The model `{name[:128]}` does not exist here; GET /v1/models lists those that do.",
        param="model",
        openai_code="model_not_found",
    )


def closed_model(name: str) -> OpenAiError:
    """Return the error for a model that the key does not open."""
    return OpenAiError(
        Code.UNAUTHORIZED,
        f"This key does not open the model `{name[:128]}`.",
        param="model",
        openai_code="model_not_found",
        status=_FORBIDDEN,
    )


def closed_door(door: str) -> OpenAiError:
    """Return the error for an API that the key does not open."""
    return OpenAiError(
        Code.UNAUTHORIZED,
        f"This key does not open this API ({door}).",
        param=None,
        openai_code="insufficient_permissions",
        status=_FORBIDDEN,
    )


def unsupported(param: str, what: str = "This is not offered here.") -> OpenAiError:
    """Return the error for a member that would change the answer and is not offered."""
    return OpenAiError(Code.BAD_REQUEST, what, param=param, openai_code="unsupported_parameter")


def missing(param: str) -> OpenAiError:
    """Return the error for a member that is needed."""
    return OpenAiError(
        Code.BAD_REQUEST,
        f"Missing required parameter: '{param}'.",
        param=param,
        openai_code="missing_required_parameter",
    )


def error_body(error: CommunityError) -> dict[str, Any]:
    """Return an error as OpenAI's JSON."""
    kind, code = _KINDS.get(error.code, (_SERVER, error.code.value))
    if isinstance(error, OpenAiError):
        code = error.openai_code
    elif "context_length" in error.details:
        code = "context_length_exceeded"
    elif "unsupported" in error.details:
        code = "unsupported_parameter"
    return {
        "error": {
            "message": error.what if isinstance(error, OpenAiError) else str(error),
            "type": kind,
            "param": _param(error.where),
            "code": code,
        }
    }


def error_response(error: CommunityError) -> JSONResponse:
    """Return an error as an HTTP response."""
    headers = {}
    wait = error.details.get("retry_after_ms")
    if isinstance(wait, int | float):
        headers["Retry-After"] = str(max(1, round(wait / 1000)))
    return JSONResponse(error_body(error), _status(error), headers)


def _param(where: str | None) -> str | None:
    """The member as OpenAI's clients know it: the bus says `/input/temperature`."""
    for begin in ("/input/", "/params/"):
        if where is not None and where.startswith(begin):
            first, *rest = where.removeprefix(begin).split("/")
            return first + "".join(f"[{e}]" if e.isdigit() else f".{e}" for e in rest)
    return where


def _status(error: CommunityError) -> int:
    if isinstance(error, OpenAiError):
        return error.status
    if error.code is Code.NOT_IMPLEMENTED:
        return 400 if "unsupported" in error.details else 404
    return error.code.status
