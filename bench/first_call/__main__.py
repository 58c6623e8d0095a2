"""`python -m bench.first_call`: print the table, or write it into the page."""

import argparse
import os

from bench.first_call import CONTESTANTS, FirstCall, counted, made_on, measure, table, write

parser = argparse.ArgumentParser(prog="python -m bench.first_call", description=__doc__)
parser.add_argument("--write", action="store_true", help="put the table into the page")
parser.add_argument("--count", action="store_true", help="count lines and commands, run nothing")
arguments = parser.parse_args()
before = os.getloadavg()[0]
if arguments.count:
    print(table([FirstCall(each, counted(each), None, None) for each in CONTESTANTS]))
else:
    measured = list(measure())
    print(f"{table(measured)}\n\n{made_on(before)}")
    if arguments.write:
        write(measured, before)
