"""Which rank a hung job waits for, from the dumps of PyTorch's flight recorder.

Contract: `read` takes a directory of dumps (pickle or JSON) and runs nothing that stands in them;
`diagnose` follows who waits for whom through all process groups. Needs no torch.
"""

from tailwatch.flight_recorder.dumps import read
from tailwatch.flight_recorder.model import Dumps
from tailwatch.flight_recorder.report import Diagnosis, StuckGroup
from tailwatch.flight_recorder.verdict import diagnose

__all__ = ["Diagnosis", "Dumps", "StuckGroup", "diagnose", "read"]
