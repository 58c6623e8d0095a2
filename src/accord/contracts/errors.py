"""The errors of the contracts package."""

from collections.abc import Sequence

from accord.kernel.errors import AccordError, Finding


class ContractError(AccordError):
    """A contract cannot be used; `findings` are the reasons if a document was refused."""

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

    @classmethod
    def invalid(
        cls, what: str, findings: Sequence[Finding], where: str | None = None
    ) -> "ContractError":
        """A document is not valid: the first finding, and how many there are."""
        more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
        return cls(f"{what} is not valid: {findings[0]}{more}", where=where, findings=findings)


class UnreadableError(ContractError):
    """A contract cannot be read or is not valid."""
