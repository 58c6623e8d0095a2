"""What an operator may choose about the web chat, with its defaults.

Owns the numbers; times are seconds. It reads no file: the station fills it from its settings.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WebChatSettings:
    """The choices of the operator.

    Attributes:
        base_url: Under which address people reach the chat, such as `https://chat.example`; empty
            for the one by which they came. Behind a proxy that ends TLS it must be given, or the
            session cookie is not marked `Secure`.
        bot: The name of the bot that is made when there is none.
        invite_seconds: How long an invitation can be used.
        session_seconds: How long a browser stays logged in.
        posts_per_minute: How many messages and edits one user may send in the long run.
        requests_per_minute: How many requests of any other kind.
        entries_per_minute: How many times one address may try to join or log in.
        streams_per_user: How many pages of one user are told live.
        streams: How many pages are told live in all, in one process.
    """

    base_url: str = ""
    bot: str = "accord"
    invite_seconds: int = 7 * 86_400
    session_seconds: int = 30 * 86_400
    posts_per_minute: int = 60
    requests_per_minute: int = 600
    entries_per_minute: int = 20
    streams_per_user: int = 8
    streams: int = 2000
