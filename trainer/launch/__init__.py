"""How ranks are started, restarted and let go: torchrun's agent with an order book.

Public face for those who start jobs: the command lines of its processes.
"""

from tailwatch.trainer.launch.commands import launcher_command, store_command

__all__ = ["launcher_command", "store_command"]
