"""Which language model a node offers, as its public manifest tells."""

from collections.abc import Mapping
from typing import Any, Final

import httpx

from accord.community.errors import Code, CommunityError
from accord.kernel import canonical

_SECONDS: Final = 10.0
_MEND: Final = "install accord[models], or name a server in [models] servers"


def first_model(manifest: Mapping[str, Any]) -> str:
    """The primary language model that a manifest lists.

    Raises:
        CommunityError: It lists none.
    """
    listed = manifest.get("capabilities")
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict) and each.get("name") == "llm.chat":
            params = each.get("params")
            model = params.get("model") if isinstance(params, dict) else None
            if isinstance(model, str) and model:
                return model
    raise CommunityError(Code.NOT_IMPLEMENTED, "there is no language model here", mend=_MEND)


async def offered_model(address: str) -> str:
    """The primary language model of the node at an address.

    Raises:
        CommunityError: The node does not answer, or offers none.
    """
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=_SECONDS) as http:
            answer = await http.get(f"{address}/manifest")
        manifest = canonical.decode(answer.content)
    except (httpx.HTTPError, canonical.CanonicalError) as error:
        raise CommunityError(
            Code.PARTITION, f"the node does not tell what it offers ({type(error).__name__})"
        ) from error
    return first_model(manifest if isinstance(manifest, dict) else {})
