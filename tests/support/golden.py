"""Golden expositions: what `--once` prints for a node of a kind.

    PYTHONPATH=src:tests python -m support.golden

writes them anew; look at the difference before it is committed. Durations and ages are left out.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from support.checkout import ROOT
from support.sysfs import Sysfs, efa_node, infiniband_node

GOLDEN = ROOT / "tests/agents/golden"
_CHANGING = ("tailwatch_source_age_seconds{", "tailwatch_source_read_seconds{")

NODES: dict[str, Callable[[Path], object]] = {
    "p4d": lambda root: efa_node(root, "p4d.24xlarge"),
    "p5": lambda root: efa_node(root, "p5.48xlarge"),
    "p5en": lambda root: efa_node(root, "p5en.48xlarge"),
    "p6-b200": lambda root: efa_node(root, "p6-b200.48xlarge"),
    "mlx5": infiniband_node,
    "nothing": Sysfs,
}
"""What builds each node below a folder."""


def once(sysfs: Path, *more: str | Path) -> bytes:
    """Return what `--once` prints with the sources that read sysfs."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tailwatch.agents.node.main", "--once", "--node", "node-0"),
            *("--path.sysfs", sysfs, "--collector.disable-defaults"),
            *("--collector.efa", "--collector.infiniband", *more),
        ],
        capture_output=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def steady(exposition: bytes) -> str:
    """Return the lines that do not differ from run to run."""
    lines = exposition.decode().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(_CHANGING))


def main() -> None:
    """Write all of them."""
    for name, build in NODES.items():
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / "sys"
            build(root)
            (GOLDEN / f"{name}.prom").write_text(steady(once(root)))


if __name__ == "__main__":
    main()
