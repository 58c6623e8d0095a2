"""What anyone may ask of a node: its manifests, its health and its figures.

Owns five routes. What they show is given by whoever builds the node.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.registry import Collector
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
    figures: Collector,
) -> Sequence[Route]:
    """The public routes.

    Args:
        manifest: The node's signed manifest for a community; for the node's first one when None is
            asked for; None when the node is not in it.
        community_manifest: The community's signed manifest, likewise.
        is_ready: Whether the node can serve.
        figures: The bus's counters.
    """

    def document(make: Callable[[str | None], Mapping[str, Any] | None]) -> Callable[..., Any]:
        async def show(request: Request) -> Response:
            found = make(request.headers.get(headers.COMMUNITY))
            if found is None:
                error = CommunityError(
                    Code.NOT_FOUND,
                    "this node has no such manifest to give",
                    mend="ask a node of that community; its own manifest, an anchor of it",
                )
                return _json(error_body(error), error.code.status)
            return _json(found)

        return show

    async def health(_request: Request) -> Response:
        return _json({"status": "ok"})

    async def ready(_request: Request) -> Response:
        return _json({"ready": True}) if is_ready() else _json({"ready": False}, 503)

    registry = CollectorRegistry()
    registry.register(figures)

    async def metrics(_request: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return (
        Route("/manifest", document(manifest)),
        Route("/community/manifest", document(community_manifest)),
        Route("/health", health),
        Route("/ready", ready),
        Route("/metrics", metrics),
    )


def _json(body: Mapping[str, Any], status: int = 200) -> Response:
    return Response(canonical.encode(dict(body)), status, media_type="application/json")
