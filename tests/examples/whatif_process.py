"""A pipeline run and a what-if in one JVM, which a test may start beside another one's.

    python whatif_process.py FOLDER PROPOSAL

Prints how the streams were accounted for, and then what `accord pipeline whatif contract` says.
"""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

from tests.pipeline.conftest import BRISK
from tests.pipeline.folders import bring_up
from typer.testing import CliRunner

from accord.cli import app
from accord.pipeline import session
from accord.pipeline.definitions import gold_contracts
from accord.pipeline.layout import Layout

folder, proposal = Path(sys.argv[1]), sys.argv[2]
needed = ("contracts_history", "contracts_manifests")
with session.open_session(folder, "local[2]", conf=BRISK) as spark:
    tables = [table for table in gold_contracts.TABLES if table.name in needed]
    outcome = bring_up(Layout(folder), spark, tables)
    accounts = {
        each.stream: {"balances": each.balances, "quarantined": each.quarantined}
        for each in outcome.accounts
    }
    print(json.dumps(accounts), flush=True)
    with mock.patch.object(session, "open_session", return_value=nullcontext(spark)):
        words = ["pipeline", "whatif", "contract", proposal, "--folder", str(folder), "--json"]
        found = CliRunner().invoke(app, words)
print(json.dumps({"code": found.exit_code, "found": json.loads(found.stdout)}), flush=True)
