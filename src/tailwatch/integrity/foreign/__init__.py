"""Checkpoints that others wrote: what can be known of them without loading them, and without torch.

Contract: `survey` never raises for what is in a file, runs nothing that is in one, and reads it in
bounded memory. One module a format; `layout` finds out which it is, `findings` has the verdicts.
"""

from tailwatch.integrity.foreign.findings import Effect, Flaw, Judgement
from tailwatch.integrity.foreign.layout import Survey, survey
from tailwatch.integrity.foreign.names import shown

__all__ = ["Effect", "Flaw", "Judgement", "Survey", "shown", "survey"]
