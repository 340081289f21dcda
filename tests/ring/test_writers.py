"""Eight writers in processes of their own, one reader: nothing is lost and nothing is torn."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tailwatch.ring import RingReader, ring_name

_WRITER = """
import sys
from pathlib import Path
from support.ranks import ring
rank, count = int(sys.argv[2]), int(sys.argv[3])
writer = ring(Path(sys.argv[1]), rank, world_size=8, record_slots=64)
for number in range(count):
    writer.append(f"{rank} {number} ".encode() * (1 + number % 97))
    writer.mark(1)
    if number % 16 == 0:
        import time; time.sleep(0.001)
"""


def test_eight_writers_and_a_reader(tmp_path: Path) -> None:
    """Records of concurrent writers come whole and in order; the gaps are exactly the lost."""
    ranks, count = 8, 3000
    path = [*sys.path, str(Path(__file__).parents[1])]
    code = f"import sys; sys.path[:0] = {path!r}\n{_WRITER}"
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(rank), str(count)])
        for rank in range(ranks)
    ]
    readers: dict[int, RingReader] = {}
    seen: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
    deadline = time.monotonic() + 120
    try:
        while any(r.sequence < count for r in readers.values()) or len(readers) < ranks:
            assert time.monotonic() < deadline
            for rank in range(ranks):
                ring_path = tmp_path / ring_name("run-1", 1, rank)
                if rank not in readers and ring_path.exists():
                    readers[rank] = RingReader(ring_path)
            for rank, reader in readers.items():
                for payload in reader.read_records():
                    words = payload.decode().split()
                    number = int(words[1])
                    assert words == [str(rank), str(number)] * (1 + number % 97)
                    seen[rank].append(number)
                reader.last_mark()
    finally:
        for writer in writers:
            if time.monotonic() > deadline:
                writer.kill()
            assert writer.wait(timeout=60) == 0
    for rank, reader in readers.items():
        assert seen[rank] == sorted(set(seen[rank]))
        assert len(seen[rank]) + reader.lost == count
