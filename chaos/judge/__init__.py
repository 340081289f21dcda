"""The judge: what a game day came to, from its evidence directory alone.

Contract: `judge` is a pure function of the directory. It reads no clock, no network and no
environment, and twice the same directory gives twice the same document. Public face: `judge`.
"""

from tailwatch.chaos.judge.verdict import judge

__all__ = ["judge"]
