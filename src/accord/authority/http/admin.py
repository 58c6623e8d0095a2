"""The routes of operators: `POST /admin/v1/<verb>`, for whoever can read the token's file.

Thin: limit, compare the token, read, call, answer.
"""

import hmac
import secrets
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from accord.authority.errors import AuthorityError, Code
from accord.authority.http import exchange
from accord.authority.http.exchange import Refusals, respond
from accord.authority.http.limits import Limit
from accord.authority.operating import Operating
from accord.kernel.clock import Clock
from accord.kernel.files import sync_folder, write_private

PATH: Final = "/admin/v1"
_LONGEST: Final = 256


class AdminRoutes:
    """The routes of operators.

    Args:
        operating: Does what is asked.
        token: What an operator shows.
        clock: The time, for limits.
        refusals: Counts what is refused.
    """

    def __init__(self, operating: Operating, token: str, clock: Clock, refusals: Refusals) -> None:
        self._operating = operating
        self._token = token.encode()
        self._refusals = refusals
        self._failing = Limit(clock, per_minute=60, burst=20)

    @property
    def routes(self) -> list[Route]:
        """The routes, to be mounted at the root."""
        guarded = self._refusals.guarded(self._answer, exchange.refusal)
        return [Route(f"{PATH}/{{verb:path}}", guarded, methods=["POST"])]

    async def _answer(self, request: Request) -> Response:
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(
            shown.strip().encode("utf-8", "replace"), self._token
        ):
            self._failing.take(exchange.client(request))
            raise AuthorityError(
                Code.UNKNOWN_SESSION,
                "the operator's token is missing or wrong",
                mend="run the command as the user who runs the authority",
            )
        body = await exchange.read_json(request)
        return respond(await self._operating.do(request.path_params["verb"], body))


def kept_token(file: Path) -> str:
    """The operator's token, made where there is none; only its owner can read the file.

    Raises:
        AuthorityError: The file cannot be read or written.
    """
    try:
        if not file.exists():
            write_private(file, secrets.token_urlsafe(32).encode())
            sync_folder(file.parent)
        return file.read_text(encoding="ascii")[:_LONGEST].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AuthorityError(
            Code.UNAVAILABLE,
            "the operator's token cannot be read or made",
            where=str(file),
            mend="look at the owner and the mode of the file",
        ) from error
