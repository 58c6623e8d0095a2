"""Makes `pipeline-tour.ipynb`: runs every cell and keeps what it printed.

    python docs/pipeline_tour.py

The history is generated from a seed, so the same notebook comes out again. It shows no path, no
host and no duration of the machine that it was made on.
"""

import sys
from pathlib import Path
from typing import Any, Final

import nbformat
from nbclient import NotebookClient

TARGET: Final = Path(__file__).with_name("pipeline-tour.ipynb")

TOUR: Final = '''
# %% [markdown]
# A tour of the pipeline

A small history is generated with known faults, brought into tables, asked a few questions, and
replayed under rules that were never in force. Everything runs on this machine, in a few minutes.

# %%
import tempfile
from contextlib import ExitStack
from pathlib import Path

from accord.pipeline.folder import Layout
from accord.pipeline.generate import generate
from accord.pipeline.runs import run_once

open_things = ExitStack()
folder = Path(open_things.enter_context(tempfile.TemporaryDirectory()))
truth = generate(folder, events=600, seed=11)
sum(terms.landed for terms in truth.streams.values()), "records have landed"

# %% [markdown]
## A run

Every record is parsed strictly, held against its schema and verified. Each term is counted on its
own; if they did not add up, nothing would be published. The generator knows what they must be.

# %%
layout = Layout(folder)
outcome = run_once(layout)
for each in outcome.accounts:
    known = truth.streams[each.stream]
    assert (each.accepted, each.quarantined, each.duplicates) == (
        known.accepted, known.quarantined, known.duplicates
    )
    print(f"{each.stream:18} {each.landed:6} = {each.accepted} accepted "
          f"+ {each.quarantined} quarantined + {each.duplicates} duplicates")

# %% [markdown]
## Questions

Gold tables are ordinary DataFrames, and views for SQL.

The first question: why did messages reach nobody? Every drop has the layer and the rule that
decided it. Here most fell because nobody could tell who sees the channel: where a platform does not
answer, the gate says no. If this were your station, look at the bot's permissions before you look
at any policy.

# %%
from accord.pipeline.folder import table_format
from accord.pipeline.runs import StoredTables, open_published
from accord.pipeline.session import open_session

version = open_things.enter_context(open_published(layout))
spark = open_things.enter_context(open_session(folder))
tables = StoredTables(spark, layout, table_format(layout), version.path)
for name in version.tables:
    tables.gold(name).createOrReplaceTempView(name)

spark.sql("""
    SELECT dropped_by AS layer, rule, sum(drops) AS events
    FROM relay_drops GROUP BY ALL ORDER BY events DESC, rule LIMIT 8
""").show(truncate=False)

# %%
spark.sql("""
    SELECT instance AS agent, sum(wakes) AS wakes, sum(joined) AS joined, sum(spared) AS spared
    FROM relay_wakes GROUP BY ALL ORDER BY agent
""").show()

# %%
from IPython.display import SVG

from accord.pipeline.report import draw, drops

SVG(draw(drops(tables).chart))

# %% [markdown]
## What if agents had to be addressed?

The gate decides again about every event, by the facts that it had then and this policy. Nothing is
estimated: it is the live function, run over what it was given.

It would cost nine messages, in four chats, and the list names them. Whoever proposes the policy can
ask there first, or leave these chats free.

# %%
from accord.pipeline.whatif import read_policy, whatif_policy

policy = read_policy("""{
  "/relay/policy": [
    {"platform": "discord", "requireAddress": true},
    {"platform": "telegram", "requireAddress": true}
  ]
}""")
print(whatif_policy(tables, policy).text())

# %% [markdown]
## What if a contract asked for more?

Somebody proposes that everyone who asks for a user says why. Whoever would have failed is named,
and the comparison of the two contracts stands below.

More than half of the calls would have failed. The list is also the plan: these callers change
first, with `why` as an optional member; when none is left in it, `why` may be required.

# %%
import json

from accord.pipeline.whatif import whatif_contract

presented = tables.gold("contracts_manifests").where("contract_id = 'graph@v1'")
proposed = json.loads(presented.orderBy("at").first().manifest)
proposed["schemas"]["FindUser"]["properties"]["why"] = {"type": "string"}
proposed["schemas"]["FindUser"]["required"] = ["id", "why"]
print(whatif_contract(tables, proposed).text())

# %% [markdown]
## What if a member were revoked?

The fold of the log, with one event more: what would be void, of the member and of others who built
on it. Read the rows of others before you sign: what they lose here are receipts for messages that
then were never sent.

# %%
from accord.pipeline.whatif import whatif_revoke

member = spark.sql("""
    SELECT author FROM event_verdicts JOIN members ON author = node_id
    WHERE status = 'accepted' AND level = 'member' GROUP BY author
    ORDER BY count(*) DESC, author LIMIT 1
""").first().author
print(whatif_revoke(tables, member, upto=5).text())

# %%
open_things.close()
'''

_MARKER: Final = "# %%"
_MARKDOWN: Final = " [markdown]"


def cells() -> list[Any]:
    """The cells of the tour, not yet run."""
    made = []
    for number, block in enumerate(TOUR.split(f"\n{_MARKER}")[1:], 1):
        kind, _, source = block.partition("\n")
        make = nbformat.v4.new_markdown_cell if kind == _MARKDOWN else nbformat.v4.new_code_cell
        made.append(make(source.strip(), id=f"cell-{number}"))
    return made


def build(seconds: int = 900) -> Any:
    """Run every cell; the notebook with what they printed.

    Args:
        seconds: How long one cell may take.
    """
    notebook = nbformat.v4.new_notebook(cells=cells())
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata.kernelspec = kernel
    NotebookClient(notebook, timeout=seconds, kernel_name="python3").execute()
    for cell in notebook.cells:
        cell.metadata = nbformat.NotebookNode()
        if cell.cell_type == "code":
            told = [each for each in cell.outputs if each.get("name") != "stderr"]
            cell.outputs = told
    notebook.metadata.pop("language_info", None)
    return notebook


if __name__ == "__main__":
    nbformat.write(build(), TARGET)
    sys.stdout.write(f"{TARGET.name} is made.\n")
