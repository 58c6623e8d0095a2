"""Errors in the format of OpenAI's API."""

from typing import Any, Final

from starlette.responses import JSONResponse

from accord.community.errors import Code, CommunityError

_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    429: "rate_limit_error",
}
_CONTEXT: Final = "context_length_exceeded"


class OpenAiError(CommunityError):
    """An error for which OpenAI's API has a code.

    Args:
        code: Gives the HTTP status.
        what: A whole sentence; clients show it unchanged.
        param: The wrong member of the request.
    """

    def __init__(self, code: Code, what: str, *, param: str | None, openai_code: str) -> None:
        super().__init__(code, what, where=param)
        self.openai_code = openai_code


def unknown_model(name: str) -> OpenAiError:
    """Return the error for a model that is not offered."""
    return OpenAiError(
        Code.NOT_FOUND,
        f"The model `{name[:128]}` does not exist here; GET /v1/models lists those that do.",
        param="model",
        openai_code="model_not_found",
    )


def error_body(error: CommunityError) -> dict[str, Any]:
    """Return an error as OpenAI's JSON."""
    code = error.code.value
    if isinstance(error, OpenAiError):
        code = error.openai_code
    elif "context_length" in error.details:
        code = _CONTEXT
    elif error.code is Code.NOT_IMPLEMENTED and "unsupported" not in error.details:
        code = "model_not_found"  # listed, and its file or server is gone
    return {
        "error": {
            "message": error.what if isinstance(error, OpenAiError) else str(error),
            "type": _KINDS.get(_status(error), "server_error"),
            "param": error.where,
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


def _status(error: CommunityError) -> int:
    if error.code is Code.NOT_IMPLEMENTED:
        return 400 if "unsupported" in error.details else 404
    return error.code.status
