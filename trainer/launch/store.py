"""The rendezvous store as a process of its own, so that no node has to stay for it."""

from __future__ import annotations

import argparse
import sys
import threading

from torch.distributed import TCPStore


def main(argv: list[str]) -> int:
    """Serve a TCPStore until killed."""
    parser = argparse.ArgumentParser(prog="python -m tailwatch.trainer.launch.store")
    parser.add_argument("--listen", required=True, help="HOST:PORT")
    arguments = parser.parse_args(argv)
    host, port = arguments.listen.rsplit(":", 1)
    store = TCPStore(host, int(port), is_master=True, multi_tenant=True, wait_for_workers=False)
    print(f"store on {host}:{store.port}", flush=True)
    threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
