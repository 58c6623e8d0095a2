"""What goes wrong in the pipeline. Nothing else lives here."""

from accord.kernel.errors import AccordError


class PipelineError(AccordError):
    """The pipeline cannot run, or refuses to publish what it cannot account for."""
