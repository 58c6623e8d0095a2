"""What goes wrong in the pipeline. Nothing else lives here."""

from accord.kernel.errors import AccordError


class PipelineError(AccordError):
    """The pipeline cannot run, or refuses to publish what it cannot account for."""


def missing_extra() -> PipelineError:
    """What to say where the pipeline's libraries are not installed."""
    return PipelineError(
        "the pipeline's libraries are missing", mend="pip install 'accord[pipeline]'"
    )
