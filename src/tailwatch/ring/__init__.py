"""The ring: how a rank leaves its marks and records without ever waiting for anybody.

One file a rank and attempt on node-local tmpfs. The rank writes through mmap (`RingWriter`), the
node agent reads with pread (`RingReader`): a reader that dies, stops or restarts costs the rank
nothing, and a file that is cut while it is read is a short read and not a SIGBUS.
"""

from tailwatch.ring.layout import ROOM_BYTES, Mark, MarkCode, ring_name
from tailwatch.ring.reader import RingReader, TornRing
from tailwatch.ring.writer import RingWriter

__all__ = ["ROOM_BYTES", "Mark", "MarkCode", "RingReader", "RingWriter", "TornRing", "ring_name"]
