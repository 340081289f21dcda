"""What lines of logs mean: one set of rules for the node agent and for `explain`.

Data lie beside the code: `xid.toml`, `sxid.toml`, `nvlink.toml` and `rules.toml` for the kernel,
`overrides.toml` for platforms that want something otherwise.
"""

from tailwatch.agents.lines.catalogue import UNKNOWN, Entry
from tailwatch.agents.lines.finding import Finding, Severity, pci_address
from tailwatch.agents.lines.kernel import KernelLines

__all__ = ["UNKNOWN", "Entry", "Finding", "KernelLines", "Severity", "pci_address"]
