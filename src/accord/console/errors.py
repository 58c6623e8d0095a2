"""Errors of the console itself."""

from accord.kernel.errors import AccordError


class ConsoleError(AccordError):
    """A page cannot do what was asked; `status` is the HTTP status."""

    def __init__(
        self, what: str, *, where: str | None = None, mend: str | None = None, status: int = 400
    ) -> None:
        super().__init__(what, where=where, mend=mend)
        self.status = status
