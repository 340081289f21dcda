#!/bin/sh
# Finds a Python that will do and hands over to setup.py: `sh tools/setup.sh [--tools-optional]`.
set -eu
cd "${0%/*}/.."

# The newest is what the lock file has wheels for.
check='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))'

for python in ${PYTHON:+"$PYTHON"} .venv/bin/python \
    python3 python3.14 python3.13 python3.12 python3.11; do
    if "$python" -c "$check" 2>/dev/null; then
        exec "$python" tools/setup.py "$@"
    fi
done

echo "setup: no Python from 3.11 to 3.14 found on PATH (python3 is $(python3 --version 2>&1 || true))." >&2
echo "  Install one (Debian: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python3.11" >&2
exit 1
