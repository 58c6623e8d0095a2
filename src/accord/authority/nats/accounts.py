"""The two accounts of a system: sessions live in one, JetStream in the other.

A server checks the subject of a message, but not the reply subject that it names, and whatever
JetStream is asked it answers there. So what a session may ask of JetStream reaches it through an
import, and its answer comes back into the account of sessions and goes no further: a server does
not carry a message through one export twice. Therefore there is one export for everything, and of
one answer each, which the server forgets once it is given. Pure.
"""

from typing import Any, Final

EXPORTS: Final = (
    {"name": "jetstream", "subject": ">", "type": "service", "response_type": "Singleton"},
)
"""What the account of streams gives: itself, to whoever names its key in an import."""

_STORED: Final = ("events.>", "trellis.>", "$KV.>", "$O.>")
_ASKED: Final = ("$JS.API.>", "$JS.ACK.>")


def imports(streams: str) -> list[dict[str, Any]]:
    """What the account of sessions takes from that of streams, which is given by its public key.

    The whole of `$JS.API` or nothing: on anything less the server would also answer for an account
    that has no JetStream. What a session may send there is for its permissions to say.
    """
    return [
        {"name": subject, "subject": subject, "account": streams, "type": "service"}
        for subject in (*_ASKED, *_STORED)
    ]
