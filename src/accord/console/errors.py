"""What goes wrong on a page before any plane is at fault. Nothing else lives here."""

from accord.kernel.errors import AccordError


class ConsoleError(AccordError):
    """A page cannot do what was asked of it.

    Args:
        what: What is wrong.
        where: Where it is.
        mend: What would mend it.
        status: The HTTP status that says the same.
    """

    def __init__(
        self, what: str, *, where: str | None = None, mend: str | None = None, status: int = 400
    ) -> None:
        super().__init__(what, where=where, mend=mend)
        self.status = status
