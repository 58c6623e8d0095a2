"""A connector on another machine, as an operator reaches it."""

from typing import Any, Final

from pydantic import SecretStr

from accord.relay.errors import Code, RelayError
from accord.web.remote import Remote, RemoteKind

OPERATOR_ROUTE: Final = "/manage/operator"
"""Below which a connector serves the verbs of operators."""

_CODES: Final = {code.value: code for code in Code}


def remote_connector(url: str, token: SecretStr, *, plain_http: bool = False) -> Remote:
    """Return the connector at an address; raises RelayError if address or token are unusable."""
    return Remote(_CONNECTOR, url, token, plain_http)


def _error(code: str, what: str, where: str | None, mend: str | None) -> RelayError:
    return RelayError(Code(code), what, where=where, mend=mend)


def _read_error(told: dict[str, Any]) -> RelayError:
    return RelayError(
        _CODES.get(str(told.get("error")), Code.BAD_REQUEST),
        str(told.get("what") or told.get("message") or "refused"),
        where=_text(told.get("where")),
        mend=_text(told.get("mend")),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


_CONNECTOR: Final = RemoteKind(
    name="connector",
    path=OPERATOR_ROUTE,
    code_member="error",
    make_token="accord relay operator-token new",  # noqa: S106
    error=_error,
    read_error=_read_error,
)
