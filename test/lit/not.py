"""Succeed if a command fails as expected: `not [--exit-code=N] COMMAND...`; N is 1 (bad input) unless given."""

import subprocess
import sys

arguments = sys.argv[1:]
expected = int(arguments.pop(0).partition("=")[2]) if arguments[0].startswith("--exit-code=") else 1
got = subprocess.run(arguments, check=False).returncode
if got != expected:
    sys.exit(f"not: expected exit code {expected}, got {got}: {' '.join(arguments)}")
