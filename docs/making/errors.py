"""The one error of the making of pages."""

from accord.kernel.errors import AccordError


class MakingError(AccordError):
    """A page cannot be made: something has no meaning, or a note belongs nowhere."""
