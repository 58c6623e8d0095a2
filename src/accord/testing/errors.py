"""The one error of `accord.testing`."""

from accord.kernel.errors import AccordError


class HarnessError(AccordError):
    """A simulation cannot go on, or a server or process under test did not do as it was told."""
