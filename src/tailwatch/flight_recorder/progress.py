"""How far each rank came in each group, looked up once for the whole analysis.

Contract: all of it is about collectives; sends and receives count for themselves. A position that
the watchdog noted is only used in groups without sends, because it counts both in one.

Cost: one pass over all operations and positions.
"""

from __future__ import annotations

from collections import defaultdict

from tailwatch.flight_recorder.model import Dumps, Group, Operation


class Progress:
    """Where ranks stand.

    Attributes:
        open: collectives that did not finish, in their order, by group and rank.
        joined: the last collective that a rank enqueued, by group and rank; -1 for none.
        finished: the last collective that some rank finished, so that all joined it, by group.
    """

    def __init__(self, dumps: Dumps) -> None:
        self.open: dict[Group, dict[int, list[Operation]]] = defaultdict(dict)
        self.joined: dict[Group, dict[int, int]] = defaultdict(dict)
        self.finished: dict[Group, int] = {}
        self._completed: dict[Group, dict[int, int]] = defaultdict(dict)
        mixed: set[Group] = set()
        for rank, dump in dumps.by_rank.items():
            for operation in dump.operations:
                group = operation.group
                seen = self.joined[group]
                seen[rank] = max(operation.collectives, seen.get(rank, -1))
                if operation.p2p:
                    mixed.add(group)
                elif operation.finished:
                    self._finish(group, operation.sequence)
                else:
                    self.open[group].setdefault(rank, []).append(operation)
        for rank, dump in dumps.by_rank.items():
            for group, position in dump.positions.items():
                if group not in mixed:
                    seen = self.joined[group]
                    seen[rank] = max(position.enqueued, seen.get(rank, -1))
                    self._completed[group][rank] = position.completed
                    self._finish(group, position.completed)

    def _finish(self, group: Group, sequence: int) -> None:
        self.finished[group] = max(sequence, self.finished.get(group, -1))

    def lagging(self) -> set[int]:
        """Return ranks that finished two collectives less of a group than another rank did.

        The other one cannot finish the second of them without this rank having run the first, so it
        is not the operation but what notes its end that stands still. One apart is normal.
        """
        found: set[int] = set()
        for group, by_rank in self.open.items():
            best = self.finished.get(group, -1)
            for rank, operations in by_rank.items():
                done = self._completed[group].get(rank, operations[0].sequence - 1)
                if max(done, operations[0].sequence - 1) + 2 <= best:
                    found.add(rank)
        return found
