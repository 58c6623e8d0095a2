"""Tells the connector at boot which messages concern this agent: section 7.3 of the specification.

Owns the declaration. It is fail-soft: without it the connector delivers by what it knows. An
all-default policy is declared too, for it may replace a stricter one of an earlier boot.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx
import structlog

from accord.relay.wire import RelevancePolicy, http_url, project

_SECONDS = 10.0
_log = structlog.stdlib.get_logger(__name__)


def policies(
    platforms: Sequence[str], settings: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, RelevancePolicy]:
    """The policy of each platform that has one."""
    found = {name: project(name, settings, environment) for name in platforms}
    return {name: policy for name, policy in found.items() if policy is not None}


async def declare(
    url: str, token: Callable[[], str], declared: Mapping[str, RelevancePolicy]
) -> bool:
    """Post every policy; False when one was not taken but may be later.

    Args:
        url: The connector, as it was configured.
        token: Makes the upgrade token, which serves here too.
        declared: The policies by platform.
    """
    if not declared:
        return True
    is_settled = True
    # No redirects: the token is for the connector that was named.
    async with httpx.AsyncClient(timeout=_SECONDS, follow_redirects=False) as client:
        for platform, policy in declared.items():
            try:
                answer = await client.post(
                    http_url(url, "/relay/policy"),
                    json={"platform": platform, **policy.to_dict()},
                    headers={"Authorization": f"Bearer {token()}"},
                )
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                reason = str(error) or type(error).__name__
                is_settled = False
            else:
                if answer.is_success:
                    continue
                reason = f"answered with {answer.status_code}"
                is_settled = is_settled and not _may_pass(answer.status_code)
            _log.warning("a relevance policy was not declared", platform=platform, reason=reason)
    return is_settled


def _may_pass(status: int) -> bool:
    """Whether a refusal may be another one tomorrow; a connector without the route stays so."""
    return status >= 500 or status in (401, 403, 408, 425, 429)
