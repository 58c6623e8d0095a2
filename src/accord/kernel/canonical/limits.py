"""What both directions share: the limits, and the error that names where a limit was passed."""

from typing import Final

from accord.kernel.errors import AccordError

MAX_DEPTH: Final = 128
"""How many arrays and objects may enclose a value."""

MAX_BYTES: Final = 8 * 1024 * 1024
"""The longest text that `decode` takes unless it is told otherwise."""

MAX_INTEGER: Final = 2**53 - 1
"""The greatest integer below which every integer is a double."""


class CanonicalError(AccordError):
    """A text is not strict JSON, or a value has no canonical form.

    Attributes:
        position: The byte of the text at which it was refused, counted from 0; None when a value
            was refused, whose JSON Pointer is then in `where`.
    """

    def __init__(
        self,
        what: str,
        *,
        position: int | None = None,
        where: str | None = None,
        mend: str | None = None,
    ) -> None:
        super().__init__(what, where=where, mend=mend)
        self.position = position
