"""The program of a prover: `python -m accord.community.log.prover`, run by `provers` alone.

Reads events from its input, answers with what is proven, and ends when its input does.
"""

import sys

from accord.community.log.proving import serve

if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
