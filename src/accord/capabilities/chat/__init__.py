"""Direct messages that only their two ends can read: `chat.send` and `chat.history`.

`sealing` is what makes them so, `forwarding` brings them on their way, `receipts` tells senders
that they have arrived.
"""

from accord.capabilities.chat.handlers import Chat, register

__all__ = ["Chat", "register"]
