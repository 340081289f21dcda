"""Runs every check of `make test`, each with its seconds, and says at the end what failed.

    python tools/check.py [--only PART,PART] [arguments for pytest]

Contract: a failing part does not hide the next; the exit status is 0 only if all passed, and
`tests` with no test in it is a failure.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = ROOT / ".venv" / "bin"

PARTS: dict[str, list[str]] = {
    "format": ["ruff", "format", "--check", "."],
    "lint": ["ruff", "check", "."],
    "types": ["mypy"],
    "imports": ["lint-imports"],
    "tests": ["pytest", "-rs", "--durations=15"],
}


def main(arguments: list[str]) -> int:
    """Run the parts; 1 when one of them failed, 2 for an unknown part."""
    parts = list(PARTS)
    if arguments[:1] == ["--only"]:
        parts = "".join(arguments[1:2]).split(",")
        arguments = arguments[2:]
        if not set(parts) <= set(PARTS):
            print(f"check: --only takes parts of {','.join(PARTS)}", file=sys.stderr)
            return 2
    results: list[tuple[str, float, bool]] = []
    for part in parts:
        program, *rest = PARTS[part]
        command = [str(BIN / program), *rest, *(arguments if part == "tests" else [])]
        print(f"== {part}: {program} {' '.join(command[1:])}".rstrip(), flush=True)
        started = time.monotonic()
        passed = subprocess.run(command, cwd=ROOT, check=False).returncode == 0
        results.append((part, time.monotonic() - started, passed))
    print("== all")
    for part, seconds, passed in results:
        print(f"{part:8} {seconds:7.1f} s  {'ok' if passed else 'FAILED'}")
    return 0 if all(passed for _, _, passed in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
