"""The bridge's own deployment: its contracts proposed, its keys let in, by the ordinary verbs.

Owns what the operator's side is asked for. Whether a plan is accepted at once is the operator's
setting; otherwise it waits like anybody's.
"""

from collections.abc import Mapping
from typing import Any, Final

from accord.authority.operating import Operating
from accord.contracts.session_proof import session_key
from accord.kernel.signing import SigningKey

DEPLOYMENT: Final = "bridge"
_BY: Final = "station"


async def deploy(
    operating: Operating,
    manifest: Mapping[str, Any],
    *,
    key: SigningKey,
    instance: str,
    accept: bool,
) -> str | None:
    """Propose a contract for the bridge and let a key run it; the plan that somebody must accept.

    Raises:
        AuthorityError: It is refused.
    """
    # A plan that waits is the session's own: it will ask for the same, and no second one is made.
    by = _BY if accept else session_key(key)
    asked = {"deployment": DEPLOYMENT, "manifest": dict(manifest), "accept": accept, "by": by}
    plan = (await operating.do("deploy", asked))["plan"]
    await operating.do(
        "instances/add", {"deployment": DEPLOYMENT, "key": session_key(key), "name": instance}
    )
    return plan["id"] if plan is not None and plan["state"] == "pending" else None
