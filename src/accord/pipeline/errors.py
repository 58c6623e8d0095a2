"""Errors of the pipeline."""

from accord.kernel.errors import AccordError


class PipelineError(AccordError):
    """The pipeline cannot run, or refuses to publish what it cannot account for."""


def missing_extra() -> PipelineError:
    """The error for a missing extra `pipeline`."""
    return PipelineError(
        "the pipeline's libraries are missing", mend="pip install 'accord[pipeline]'"
    )
