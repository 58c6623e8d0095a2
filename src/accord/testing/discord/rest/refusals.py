"""How the service says no: a status, a code of its own, a message, and what is wrong with a form.

Owns the documented codes.
"""

from accord.testing.discord.world import Json


class Refused(Exception):  # noqa: N818 - an answer, not a failure of the fake
    """A call is answered with an error.

    Args:
        status: Of HTTP.
        code: The service's own.
        message: For people.
        errors: What is wrong with which member of a form.
    """

    def __init__(self, status: int, code: int, message: str, errors: Json | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.errors = errors

    def json(self) -> Json:
        """The error object."""
        made: Json = {"message": self.message, "code": self.code}
        return made if self.errors is None else {**made, "errors": self.errors}


_UNKNOWN = {
    "channel": (10003, "Unknown Channel"),
    "guild": (10004, "Unknown Guild"),
    "member": (10007, "Unknown Member"),
    "message": (10008, "Unknown Message"),
    "role": (10011, "Unknown Role"),
    "user": (10013, "Unknown User"),
    "webhook": (10015, "Unknown Webhook"),
    "interaction": (10062, "Unknown interaction"),
    "application": (10002, "Unknown Application"),
}


def unknown(what: str) -> Refused:
    """There is no such thing."""
    return Refused(404, *_UNKNOWN[what])


def unauthorized() -> Refused:
    """The token is missing or wrong."""
    return Refused(401, 0, "401: Unauthorized")


def missing_access() -> Refused:
    """The bot does not see that."""
    return Refused(403, 50001, "Missing Access")


def missing_permissions() -> Refused:
    """The bot sees that, and may not do this there."""
    return Refused(403, 50013, "Missing Permissions")


def bad_form(member: str, code: str, message: str) -> Refused:
    """One member of a form is wrong."""
    found: Json = {"_errors": [{"code": code, "message": message}]}
    for name in reversed(member.split(".")):
        found = {name: found}
    return Refused(400, 50035, "Invalid Form Body", found)
