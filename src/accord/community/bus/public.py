"""What anyone may ask of a node: its manifests and its health.

Owns four routes. What they show is given by whoever builds the node; `/metrics` is the station's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from accord.community.bus.answering import error_body
from accord.community.envelope import headers
from accord.community.errors import Code, CommunityError
from accord.kernel import canonical


def public_routes(
    *,
    manifest: Callable[[str | None], Mapping[str, Any] | None],
    community_manifest: Callable[[str | None], Mapping[str, Any] | None],
    is_ready: Callable[[], bool],
) -> Sequence[Route]:
    """The public routes.

    Args:
        manifest: The node's signed manifest for a community; for the node's first one when None is
            asked for; None when the node is not in it.
        community_manifest: The community's signed manifest, likewise.
        is_ready: Whether the node can serve.
    """

    def document(make: Callable[[str | None], Mapping[str, Any] | None]) -> Callable[..., Any]:
        async def show(request: Request) -> Response:
            found = make(request.headers.get(headers.COMMUNITY))
            if found is None:
                error = CommunityError(Code.NOT_FOUND, "this node is not in that community")
                return _json(error_body(error), error.code.status)
            return _json(found)

        return show

    async def health(_request: Request) -> Response:
        return _json({"status": "ok"})

    async def ready(_request: Request) -> Response:
        return _json({"ready": True}) if is_ready() else _json({"ready": False}, 503)

    return (
        Route("/manifest", document(manifest)),
        Route("/community/manifest", document(community_manifest)),
        Route("/health", health),
        Route("/ready", ready),
    )


def _json(body: Mapping[str, Any], status: int = 200) -> Response:
    return Response(canonical.encode(dict(body)), status, media_type="application/json")
