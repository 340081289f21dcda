"""How ranks are started, restarted and let go: torchrun's agent with an order book.

Public face for chaos and poc: the exit codes of a rank and the names of the processes' modules.
"""

from tailwatch.trainer.launch.codes import HOPELESS, LEFT, REFORM

__all__ = ["HOPELESS", "LEFT", "REFORM"]
