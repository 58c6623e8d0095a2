"""An authority on another machine, as operators and CI reach it."""

from typing import Any, Final

from pydantic import SecretStr

from accord.authority.rules.errors import AuthorityError, Code
from accord.kernel.errors import Finding
from accord.web.remote import Remote, RemoteKind

ADMIN_PATH: Final = "/admin/v1"
"""Below which an authority serves the verbs of operators."""

_CODES: Final = {code.value: code for code in Code}


def remote_authority(url: str, token: SecretStr, *, plain_http: bool = False) -> Remote:
    """Return the authority at an address; raises AuthorityError if unusable."""
    return Remote(_REGISTRY, url, token, plain_http)


def refusal_of(told: dict[str, Any]) -> AuthorityError:
    """The error in an answer of an authority."""
    listed = told.get("findings", [])
    findings = [
        Finding(str(each.get("rule")), str(each.get("pointer")), str(each.get("message")))
        for each in (listed if isinstance(listed, list) else [])
        if isinstance(each, dict)
    ]
    mend = told.get("mend")
    return AuthorityError(
        _CODES.get(str(told.get("code")), Code.BAD_REQUEST),
        str(told.get("message", "refused")),
        mend=mend if isinstance(mend, str) else None,
        findings=findings,
    )


def _error(code: str, what: str, where: str | None, mend: str | None) -> AuthorityError:
    return AuthorityError(Code(code), what, where=where, mend=mend)


_REGISTRY: Final = RemoteKind(
    name="registry",
    path=ADMIN_PATH,
    code_member="code",
    make_token="accord authority registry-token new",  # noqa: S106
    error=_error,
    read_error=refusal_of,
)
