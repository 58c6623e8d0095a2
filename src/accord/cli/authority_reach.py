"""The authority of a home, as an operator's commands reach it.

Where one runs, by its routes for operators and the token that only its user can read; where none
does, by its store. Both go through the same verbs. Owns which of the two it is, and the options
that several commands share. It decides nothing.
"""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from accord.cli.contract_reading import printable

if TYPE_CHECKING:
    from accord.authority.errors import AuthorityError
    from accord.station.settings import Settings

Deployment = Annotated[str, typer.Argument(help="The deployment's name.")]
OfDeployment = Annotated[
    str | None, typer.Option("--deployment", help="Only those of this deployment.")
]
By = Annotated[str, typer.Option("--by", help="Who decides, for the history.")]

_SECONDS: Final = 60.0
_ABSENT: Final = 404


def ask(home: Path | None, config: Path | None, verb: str, **body: Any) -> dict[str, Any]:
    """Let the authority of a home do something; what is None is left out.

    Raises:
        AccordError: There is none, or it refuses.
    """
    from accord.authority.errors import AuthorityError
    from accord.cli.relay_store import need_home
    from accord.station import logs
    from accord.station.settings import load

    settings = load(home, config)
    need_home(settings)
    said = {name: value for name, value in body.items() if value is not None}
    with logs.configured(settings.log.model_copy(update={"level": "error"})):
        try:
            answer = _by_route(settings, verb, said)
            return answer if answer is not None else asyncio.run(_by_store(settings, verb, said))
        except AuthorityError as error:
            # It may repeat what somebody else called a deployment.
            raise AuthorityError(
                error.code,
                printable(error.what),
                where=None if error.where is None else printable(error.where),
                mend=None if error.mend is None else printable(error.mend),
                findings=error.findings,
            ) from error


def moment(seconds: float | None) -> str:
    """A time as people read it."""
    from accord.kernel.clock import format_time

    return "never" if seconds is None else format_time(seconds)


def _by_route(settings: "Settings", verb: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """The answer of an authority that runs; None where none does."""
    import httpx

    from accord.authority.errors import AuthorityError, Code
    from accord.station.home import Home, holder

    held = holder(Home(settings.home))
    file = Home(settings.home).authority_token
    if held is None or not held.address.startswith("http") or not file.exists():
        return None
    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        raise AuthorityError(
            Code.FORBIDDEN,
            "the operator's token cannot be read",
            where=str(file),
            mend="run this command as the user who runs the authority",
        ) from None
    try:
        # The address is this machine's own: a proxy has no business between.
        with httpx.Client(timeout=_SECONDS, trust_env=False) as client:
            answer = client.post(
                f"{held.address}/admin/v1/{verb}",
                json=body,
                headers={"authorization": f"Bearer {token}"},
            )
            told = answer.json()
    except (httpx.HTTPError, ValueError):
        # A station that runs without an authority, or is just ending.
        return None
    if answer.is_success and isinstance(told, dict):
        return told
    if isinstance(told, dict) and "code" in told:
        raise _refusal(told)
    if answer.status_code == _ABSENT:
        return None
    raise AuthorityError(
        Code.UNAVAILABLE,
        "the station's answer cannot be understood",
        mend="is it another version? restart it",
    )


def _refusal(told: dict[str, Any]) -> "AuthorityError":
    from accord.authority.errors import AuthorityError, Code
    from accord.kernel.finding import Finding

    try:
        code = Code(told["code"])
    except ValueError:
        code = Code.BAD_REQUEST
    findings = [Finding(each["rule"], each["pointer"], each["message"]) for each in _list(told)]
    return AuthorityError(
        code, str(told.get("message", "refused")), mend=told.get("mend"), findings=findings
    )


def _list(told: dict[str, Any]) -> list[dict[str, str]]:
    found = told.get("findings", [])
    return found if isinstance(found, list) else []


async def _by_store(settings: "Settings", verb: str, body: dict[str, Any]) -> dict[str, Any]:
    from accord.kernel.clock import SystemClock
    from accord.station.authority import operated

    async with operated(settings, SystemClock()) as operating:
        return dict(await operating.do(verb, body))
