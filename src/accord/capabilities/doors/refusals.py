"""Errors as OpenAI's clients read them.

Owns the one form in which every door over plain HTTP refuses.
"""

from typing import Any, Final

from starlette.responses import JSONResponse

from accord.community.errors import Code, CommunityError

_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def error_body(error: CommunityError) -> dict[str, Any]:
    """What a client reads of an error."""
    return {
        "error": {
            "message": str(error),
            "type": _KINDS.get(error.code.status, "server_error"),
            "param": error.where,
            "code": error.code.value,
        }
    }


def refusal(error: CommunityError) -> JSONResponse:
    """An error as an answer."""
    headers = {}
    wait = error.details.get("retry_after_ms")
    if isinstance(wait, int | float):
        headers["Retry-After"] = str(max(1, round(wait / 1000)))
    status = error.code.status
    if error.code is Code.NOT_IMPLEMENTED:
        status = 404  # a model that is not there, as these clients know it
    return JSONResponse(error_body(error), status, headers)
