"""One model behind an OpenAI-compatible server: requests, limits, and what its refusals mean.

The address comes from the settings; nothing in a call changes where a request goes.
"""

import asyncio
import json
from typing import Any, Final

import httpx
import structlog

from accord.community.errors import Code, CommunityError, bad_request
from accord.web import outgoing

_log = structlog.stdlib.get_logger(__name__)

MAX_ANSWER: Final = 64 * 1024 * 1024

MALFORMED: Final = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""What reading an answer that is not as it should be may raise."""

_REFUSED: Final = frozenset({400, 413, 415, 422})
_BUSY: Final = frozenset({429, 503})


class ModelServer:
    """Asks one model of one server.

    Args:
        key: The API key; empty for none.
        seconds: The longest time for one answer.
        transport: Replaces the socket, for tests.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key: str = "",
        seconds: float = 120.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.model = model
        self._url = url
        self._seconds = seconds
        self._http = outgoing.bounded_client(
            MAX_ANSWER,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(seconds, connect=10.0),
            transport=transport,
            trust_env=False,
        )

    async def post(self, path: str, **content: Any) -> httpx.Response:
        """Post something, in the words of httpx, and return the answer.

        Raises:
            CommunityError: The server refuses it (`bad_request`), does not have the model
                (`not_implemented`), is busy (`capacity_exceeded`), cannot be reached (`partition`,
                `timeout`), or fails (`internal_error`).
        """
        try:
            async with asyncio.timeout(self._seconds):
                answer = await self._http.post(f"{self._url}/{path}", **content)
        except (httpx.TimeoutException, TimeoutError) as error:
            raise self._lost(Code.TIMEOUT, error) from error
        except httpx.HTTPError as error:
            raise self._lost(Code.PARTITION, error) from error
        self._check(path, answer.status_code)
        return answer

    async def ask(self, path: str, given: Any) -> Any:
        """Post JSON and return the JSON of the answer; raises as `post` does."""
        answer = await self.post(path, json=given)
        try:
            return json.loads(answer.content)
        except MALFORMED as error:
            raise self.malformed("JSON") from error

    def malformed(self, expected: str) -> CommunityError:
        """Return the error for an answer that is something else."""
        return CommunityError(
            Code.PARTITION, f"the server of {self.model} does not answer with {expected}"
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def _check(self, path: str, status: int) -> None:
        if status == httpx.codes.OK:
            return
        _log.warning("model server refused a request", url=self._url, path=path, status=status)
        if status == httpx.codes.NOT_FOUND:
            raise CommunityError(
                Code.NOT_IMPLEMENTED, f"the server of {self.model} does not offer it now"
            )
        if status in _REFUSED:
            raise bad_request(f"the server of {self.model} refuses this ({status})")
        if status in _BUSY:
            raise CommunityError(
                Code.CAPACITY_EXCEEDED,
                f"the server of {self.model} is busy",
                details={"retry_after_ms": 2000},
            )
        raise CommunityError(
            Code.INTERNAL_ERROR, f"the server of {self.model} refuses this node ({status})"
        )

    def _lost(self, code: Code, error: Exception) -> CommunityError:
        _log.warning("model server not reachable", url=self._url, error=type(error).__name__)
        return CommunityError(
            code, f"the server of {self.model} cannot be reached ({type(error).__name__})"
        )
