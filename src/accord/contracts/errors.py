"""The one error of the contracts package."""

from collections.abc import Sequence

from accord.kernel.errors import AccordError
from accord.kernel.finding import Finding


class ContractError(AccordError):
    """A contract, or something asked of one, cannot be used.

    Attributes:
        findings: Every reason, when a document was refused.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        mend: str | None = None,
        findings: Sequence[Finding] = (),
    ) -> None:
        super().__init__(what, where=where, mend=mend)
        self.findings = tuple(findings)
