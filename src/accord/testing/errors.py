"""The error of `accord.testing`."""

from accord.kernel.errors import AccordError


class HarnessError(AccordError):
    """A simulation cannot continue, or a server or process under test failed."""
