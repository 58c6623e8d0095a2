"""What-ifs: what a new contract, policy or revocation would have changed in recorded history.

Each what-if runs the rule that decides live over every record again and returns a value with
`to_dict` for programs and `text` for people. Nothing is written.
"""

from accord.pipeline.rules.proposals import (
    CallOutcome,
    ProposedContract,
    ProposedPolicy,
    RevocationCut,
    able_to_sign,
    compose_revocation,
    read_policy,
)
from accord.pipeline.whatif.contract import (
    CallFailure,
    ContractWhatIf,
    SurfaceReplay,
    whatif_contract,
)
from accord.pipeline.whatif.policy import PolicyWhatIf, replay_decision, whatif_policy
from accord.pipeline.whatif.revocation import RevokeWhatIf, whatif_revoke

__all__ = [
    "CallFailure",
    "CallOutcome",
    "ContractWhatIf",
    "PolicyWhatIf",
    "ProposedContract",
    "ProposedPolicy",
    "RevocationCut",
    "RevokeWhatIf",
    "SurfaceReplay",
    "able_to_sign",
    "compose_revocation",
    "read_policy",
    "replay_decision",
    "whatif_contract",
    "whatif_policy",
    "whatif_revoke",
]
