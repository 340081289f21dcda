"""Processes that do not outlive the one that started them.

Four layers, each for the case that the one before misses:

- `spawn` and `die_with_parent`: the kernel kills a child when its parent dies, whatever way;
- `Process.terminate`: SIGTERM, then SIGKILL to the whole process group, always reaped;
- `kill_for_sure`: every process that carries the run's token in its environment, in whatever
  session it hides, stopped or not;
- `Guard`: a process in a session of its own that does the above, undoes open faults and removes
  scratch directories after the driver was killed.

Cost: stdlib and ctypes only; the import takes milliseconds.
"""

from tailwatch.processes.child import TOKEN_VARIABLE, Process, spawn
from tailwatch.processes.guarding import Guard
from tailwatch.processes.identity import die_with_parent, same_process, start_ticks, wait_gone
from tailwatch.processes.scratch import make_scratch, remove_scratch, scratch_path
from tailwatch.processes.starting import (
    StartError,
    free_port,
    how_it_ended,
    last_words,
    start_listening,
    wait_until,
)
from tailwatch.processes.sweep import find_by_token, kill_for_sure

__all__ = [
    "TOKEN_VARIABLE",
    "Guard",
    "Process",
    "StartError",
    "die_with_parent",
    "find_by_token",
    "free_port",
    "how_it_ended",
    "kill_for_sure",
    "last_words",
    "make_scratch",
    "remove_scratch",
    "same_process",
    "scratch_path",
    "spawn",
    "start_listening",
    "start_ticks",
    "wait_gone",
    "wait_until",
]
