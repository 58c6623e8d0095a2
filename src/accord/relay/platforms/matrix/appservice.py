"""The bot as an application service: the homeserver sends events in transactions.

A transaction is answered when everything in it is stored; repeating one changes nothing.
"""

import hmac
import re
from pathlib import Path
from typing import Any, Final

import orjson
import structlog
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from accord.kernel.errors import AccordError
from accord.kernel.files import write_private
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.base import read_body, watch_service
from accord.relay.platforms.matrix.api import CLIENT, Homeserver
from accord.relay.platforms.matrix.events import EventHandler
from accord.relay.platforms.matrix.rules import is_room, localpart_of, membership_of
from accord.relay.platforms.settings import MatrixSettings, resolve_secret

_LARGEST: Final = 16 * 1024 * 1024
_BODY_SECONDS: Final = 30.0
_log = structlog.stdlib.get_logger(__name__)


def service_path(settings: MatrixSettings) -> str:
    """The path below which the homeserver calls."""
    return f"/relay/platforms/matrix/{settings.user_id.removeprefix('@')}"


def write_registration(settings: MatrixSettings, public_url: str, path: Path) -> None:
    """Write the registration file for the homeserver, readable by its owner alone.

    `public_url` is where the homeserver reaches the connector; `path` must not exist.

    Raises:
        RelayError: A token is missing, or the file cannot be written.
    """
    as_token = resolve_secret(settings.access_token, settings.access_token_file, "access_token")
    hs_token = resolve_secret(settings.hs_token, settings.hs_token_file, "hs_token")
    localpart = localpart_of(settings.user_id)
    registration = {
        "id": f"accord-{localpart}",
        "url": f"{public_url.rstrip('/')}{service_path(settings)}",
        "as_token": as_token.get_secret_value(),
        "hs_token": hs_token.get_secret_value(),
        "sender_localpart": localpart,
        "rate_limited": False,
        "namespaces": {"users": [{"exclusive": True, "regex": re.escape(settings.user_id)}]},
    }
    try:
        # What is JSON is YAML.
        write_private(path, orjson.dumps(registration, option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as error:
        raise RelayError(
            Code.CONFLICT, f"the registration cannot be written ({error.strerror})", where=str(path)
        ) from None


class AppService:
    """The endpoints that the homeserver calls with `hs_token`."""

    def __init__(
        self,
        settings: MatrixSettings,
        homeserver: Homeserver,
        handler: EventHandler,
        hs_token: SecretStr,
    ) -> None:
        self._settings = settings
        self._homeserver = homeserver
        self._handler = handler
        self._expected = f"Bearer {hs_token.get_secret_value()}".encode()
        self._is_registered = False
        self.context: PlatformContext | None = None

    @property
    def routes(self) -> list[BaseRoute]:
        """The routes, to be mounted at the root."""
        base = f"{service_path(self._settings)}/_matrix/app/v1"
        return [
            Route(f"{base}/transactions/{{txn}}", self._transaction, methods=["PUT"]),
            Route(f"{base}/ping", self._ping, methods=["POST"]),
            # No users or rooms are created on demand.
            Route(f"{base}/users/{{name:path}}", self._nothing, methods=["GET"]),
            Route(f"{base}/rooms/{{name:path}}", self._nothing, methods=["GET"]),
        ]

    async def run(self, context: PlatformContext) -> None:
        """Check the registration now and then; raises RelayError if the token is refused."""
        await watch_service(context, self._check)

    async def _check(self) -> None:
        wanted = {
            "type": "m.login.application_service",
            "username": localpart_of(self._settings.user_id),
            "inhibit_login": True,
        }
        if not self._is_registered:
            try:
                await self._homeserver.ask("POST", f"{CLIENT}/register", wanted)
            except RelayError as error:
                if error.code is not Code.BAD_REQUEST:  # it is there already
                    raise
            self._is_registered = True
        await self._homeserver.check_user(self._settings.user_id)

    async def _transaction(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        if self.context is None:
            return _refuse(503, "M_UNKNOWN", "the connector is not ready")
        try:
            body = await read_body(request, _LARGEST, _BODY_SECONDS)
        except RelayError:
            return _refuse(413, "M_TOO_LARGE", "a transaction is smaller, and comes in time")
        try:
            transaction = orjson.loads(body)
        except orjson.JSONDecodeError:
            transaction = None
        events = transaction.get("events") if isinstance(transaction, dict) else None
        if not isinstance(events, list):
            return _refuse(400, "M_BAD_JSON", "a transaction is an object with a list of events")
        try:
            for event in events:
                await self._take(event, self.context)
        except AccordError as error:
            _log.warning("a transaction was not stored", reason=str(error))
            return _refuse(503, "M_UNKNOWN", "the transaction was not stored; send it again")
        return JSONResponse({})

    async def _take(self, event: Any, context: PlatformContext) -> None:
        room_id: Any = event.get("room_id") if isinstance(event, dict) else None
        if not is_room(room_id):
            return
        if membership_of(event, self._settings.user_id) == "invite":
            unsigned = event.get("unsigned")
            shown = unsigned.get("invite_room_state") if isinstance(unsigned, dict) else None
            state = shown if isinstance(shown, list) else []
            await self._handler.answer_invitation(room_id, [event, *state])
        await self._handler.take(room_id, [event], context)

    async def _ping(self, request: Request) -> Response:
        return self._refusal(request) or JSONResponse({})

    async def _nothing(self, request: Request) -> Response:
        return self._refusal(request) or _refuse(404, "M_NOT_FOUND", "there is no such thing")

    def _refusal(self, request: Request) -> Response | None:
        given = request.headers.get("authorization", "")
        if not given:
            return _refuse(401, "M_UNAUTHORIZED", "the hs_token is missing")
        if not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self._expected):
            return _refuse(403, "M_FORBIDDEN", "this is not the hs_token")
        return None


def _refuse(status: int, name: str, what: str) -> Response:
    return JSONResponse({"errcode": name, "error": what}, status)
