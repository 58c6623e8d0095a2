"""All HTTP routes of the authority. Operators' are `POST /admin/v1/<command>` with a token.

A registry token is good there for the verbs of the registry alone.
"""

import hmac
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from accord.authority.admin import TOKEN_MEMBER, AdminCommands
from accord.authority.client import ADMIN_PATH
from accord.authority.http import exchange
from accord.authority.http.exchange import HEADERS, RateLimit, Refusals, json_response
from accord.authority.http.portal import PortalRoutes
from accord.authority.http.sessions import NatsTransport, PlanRequesters, SessionRoutes
from accord.authority.identities import Identities
from accord.authority.registry import RegistryToken, RegistryTokens
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.service import Authority
from accord.kernel.clock import Clock
from accord.kernel.files import sync_folder, write_private

_MAX_TOKEN: Final = 256


class AdminRoutes:
    """The operators' routes."""

    def __init__(
        self,
        commands: AdminCommands,
        token: str,
        clock: Clock,
        refusals: Refusals,
        tokens: RegistryTokens,
    ) -> None:
        self._operating = commands
        self._tokens = tokens
        self._token = token.encode()
        self._refusals = refusals
        self._failing = RateLimit(clock, per_minute=60, burst=20)

    @property
    def routes(self) -> list[Route]:
        """The routes, for the root."""
        guarded = self._refusals.guarded(self._answer, exchange.error_response)
        return [Route(f"{ADMIN_PATH}/{{verb:path}}", guarded, methods=["POST"])]

    async def _answer(self, request: Request) -> Response:
        verb = request.path_params["verb"]
        holder = await self._authenticate(request, verb)
        body = await exchange.read_json(request)
        body.pop(TOKEN_MEMBER, None)
        if holder is not None:
            body[TOKEN_MEMBER] = holder.by
        return json_response(await self._operating.do(verb, body))

    async def _authenticate(self, request: Request, verb: str) -> RegistryToken | None:
        """Whose registry token it is, None for the operator's; raises `AuthorityError`."""
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        bearer = shown.strip()
        if scheme.lower() == "bearer":
            if hmac.compare_digest(bearer.encode("utf-8", "replace"), self._token):
                return None
            holder = await self._tokens.authenticate(bearer)
            if holder is not None and holder.allows(verb):
                return holder
            if holder is not None:
                raise AuthorityError(
                    Code.FORBIDDEN,
                    "this registry token is not good for that",
                    where=verb[:80],
                    mend="tokens to push are made with --push; all else needs the operator",
                )
        self._failing.take(exchange.client_key(request))
        raise AuthorityError(
            Code.UNKNOWN_SESSION,
            "the operator's token is missing or wrong",
            mend="run the command as the user who runs the authority, "
            "or give a registry token that is still good",
        )


def ensure_token(file: Path) -> str:
    """The operators' token, created if missing; only its owner can read the file."""
    try:
        if not file.exists():
            write_private(file, secrets.token_urlsafe(32).encode())
            sync_folder(file.parent)
        return file.read_text(encoding="ascii")[:_MAX_TOKEN].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AuthorityError(
            Code.UNAVAILABLE,
            "the operator's token cannot be read or created",
            where=str(file),
            mend="check the owner and the mode of the file",
        ) from error


def routes(
    authority: Authority,
    identities: Identities,
    commands: AdminCommands,
    transport: NatsTransport,
    clock: Clock,
    *,
    token: str,
    base_url: str = "",
    refusals: Refusals | None = None,
    requesters: PlanRequesters | None = None,
) -> Sequence[Route]:
    """All routes; `base_url` is the address of the pages, empty for that of each request."""
    refusals = refusals or Refusals()
    requesters = requesters or PlanRequesters(authority, clock)
    sessions = SessionRoutes(
        authority, identities, transport, clock, refusals, requesters, base_url
    )
    portal = PortalRoutes(identities, clock, refusals, base_url)
    admin = AdminRoutes(commands, token, clock, refusals, authority.registry.tokens)
    return [Route("/healthz", _healthz), *sessions.routes, *portal.routes, *admin.routes]


async def _healthz(_request: Request) -> Response:
    return PlainTextResponse("ok\n", headers=dict(HEADERS))
