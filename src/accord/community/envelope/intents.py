"""What a co-signer signs: the intent of an event that needs more than one signature.

An intent is the canonical `{"community_id", "event_type", "data"}`, the data without `co_signers`.
It names the community, so a co-signature cannot be carried into another one; it does not name the
event's author, so whoever has gathered enough of them may write the event.
"""

from collections.abc import Mapping
from typing import Any, Final

from accord.community.envelope import forms
from accord.kernel import signing
from accord.kernel.signing import SigningKey

CO_SIGNERS: Final = "co_signers"


def intent_bytes(community_id: str, event_type: str, data: Mapping[str, Any]) -> bytes:
    """The bytes that each co-signer signs; co-signatures that the data has are left out.

    Raises:
        CommunityError: The data has no canonical form: `bad_request`.
    """
    bare = {name: value for name, value in data.items() if name != CO_SIGNERS}
    return forms.signed_bytes(
        {"community_id": community_id, "event_type": event_type, "data": bare}
    )


def co_sign(
    key: SigningKey, community_id: str, event_type: str, data: Mapping[str, Any]
) -> dict[str, str]:
    """A co-signature, as it stands among an event's `co_signers`."""
    signature = key.sign_bytes(intent_bytes(community_id, event_type, data))
    return {"node_id": key.id, "signature": forms.write_signature(signature)}


def has_signed(
    node_id: str, signature: str, community_id: str, event_type: str, data: Mapping[str, Any]
) -> bool:
    """Whether a co-signature is the node's, over this intent in this community."""
    raw = forms.read_signature(signature)
    if raw is None or not forms.is_id(node_id):
        return False
    message = intent_bytes(community_id, event_type, data)
    return signing.verify_bytes(signing.parse_id(node_id), message, raw)
