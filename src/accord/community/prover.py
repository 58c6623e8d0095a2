"""The program of a prover process: `python -m accord.community.prover`."""

import sys

from accord.community.proofs import serve_proofs

if __name__ == "__main__":
    serve_proofs(sys.stdin.buffer, sys.stdout.buffer)
