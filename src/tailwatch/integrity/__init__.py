"""What a valid checkpoint is: manifest, digests, verdicts, names, retention, audit; without torch.

Contract: trainer, agents, chaos and the command line judge with this code and nothing else, so
they cannot disagree. A checkpoint is a directory with a `MANIFEST.json` (module `manifest`);
`verify` is the one definition of valid (module `verify`); names and their changes are in `names`.
"""

from tailwatch.integrity.audit import EXIT_CODES, Audit, AuditedCheckpoint, AuditedFile, audit
from tailwatch.integrity.blocks import BLOCK_BYTES, block_count, block_digest, digest
from tailwatch.integrity.copying import CopyError, copy_files
from tailwatch.integrity.manifest import (
    MANIFEST_NAME,
    SCHEMA,
    FileEntry,
    Manifest,
    ManifestError,
    count_experts,
    expected_digest,
    read_manifest,
    write_manifest,
)
from tailwatch.integrity.names import (
    Candidate,
    candidates,
    commit,
    parse_name,
    quarantine,
    remove_leftovers,
    step_name,
    temporary_name,
)
from tailwatch.integrity.retention import (
    Forecast,
    Plan,
    Policy,
    carry_out,
    forecast,
    plan_retention,
    retain,
)
from tailwatch.integrity.storage import Storage, storage_of
from tailwatch.integrity.verify import (
    CheckpointVerdict,
    Finding,
    Problem,
    share,
    verdict_of,
    verify,
)

__all__ = [
    "BLOCK_BYTES",
    "EXIT_CODES",
    "MANIFEST_NAME",
    "SCHEMA",
    "Audit",
    "AuditedCheckpoint",
    "AuditedFile",
    "Candidate",
    "CheckpointVerdict",
    "CopyError",
    "FileEntry",
    "Finding",
    "Forecast",
    "Manifest",
    "ManifestError",
    "Plan",
    "Policy",
    "Problem",
    "Storage",
    "audit",
    "block_count",
    "block_digest",
    "candidates",
    "carry_out",
    "commit",
    "copy_files",
    "count_experts",
    "digest",
    "expected_digest",
    "forecast",
    "parse_name",
    "plan_retention",
    "quarantine",
    "read_manifest",
    "remove_leftovers",
    "retain",
    "share",
    "step_name",
    "storage_of",
    "temporary_name",
    "verdict_of",
    "verify",
    "write_manifest",
]
