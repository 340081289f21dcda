"""How often the diagnosis is right: seeded episodes replayed from recorded steps of the trainer.

    python bench/diagnosis.py [--healthy 320] [--each 4] [--seed 40000] [--write] [--json]

Every kind of fault at every size, `--each` times, and `--healthy` episodes without a fault: once
with the noise of the recorded runs shrunk to a variation of 1 %, once with all of it (as recorded).
An episode is right when the verdict is the cause that was put in and the accused ranks are exactly
the guilty ones. `--write` puts tables and picture into docs/diagnosis.md.

Bars, at 1 % of variation: at least 95 % right at sizes of 30 % and more, no accusation in a healthy
episode, onset within 3 steps of the first step that was touched in 95 % of the right ones of the
lasting faults. As recorded: at least 95 % right at 300 %, no accusation in a healthy one. Ends with
1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tailwatch.analysis.canary import EXPECTED
from tailwatch.analysis.diagnosis import lower_share
from tailwatch.analysis.episodes import Fault, FaultKind, replay
from tailwatch.analysis.runrules import diagnose_records
from tailwatch.analysis.steptable import StepTable, step_tables
from tailwatch.records import decode
from tailwatch.steplog import payloads

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "tests" / "analysis" / "fixtures"
PAGE = ROOT / "docs" / "diagnosis.md"
PICTURE = ROOT / "docs" / "diagnosis.svg"
RUNS = ("quiet-4", "quiet-2", "busy-4")
SIZES = (0.1, 0.2, 0.3, 0.5, 1.0, 3.0)
STEPS = 300
ONSET_STEPS = 3
# Their onset is where the first long one falls, and the first load of many.
PASSING: tuple[FaultKind, ...] = ("sequences",)


class Outcome(NamedTuple):
    """One episode: what was put in, and what came out."""

    kind: FaultKind
    size: float
    steady: bool
    verdict: str
    right_cause: bool
    right: bool
    onset_error: int | None


def recorded(name: str) -> StepTable:
    """Return a recorded run as a table."""
    records = [
        decode(payload)
        for path in sorted((RECORDED / name).glob("*.steplog.gz"))
        for _, payload in payloads(gzip.decompress(path.read_bytes()))
    ]
    return max(step_tables(records, name), key=lambda table: len(table.step))


def episode(base: StepTable, kind: FaultKind, size: float, seed: int, *, steady: bool) -> Outcome:
    """Return the outcome of one episode."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(base.world_size))
    peer = int((rank + 1 + rng.integers(base.world_size - 1)) % base.world_size)
    fault = Fault(kind=kind, size=size, onset=int(rng.integers(100, 200)), rank=rank, peer=peer)
    made = replay(base, fault, steps=STEPS, seed=seed, cv=0.01 if steady else None)
    found = diagnose_records(made.records)
    cause = found.verdict == EXPECTED[kind]
    ranks = {worker.rank for worker in found.workers}
    error = None
    if cause and found.onset_step is not None and made.first_step is not None:
        error = found.onset_step - made.first_step
    right = cause and ranks == made.guilty
    return Outcome(kind, size, steady, found.verdict, cause, right, error)


def episodes(healthy: int, each: int, seed: int) -> Iterator[Outcome]:
    """Yield all outcomes."""
    bases = [recorded(name) for name in RUNS]
    for steady in (True, False):
        for i in range(healthy):
            seed += 1
            yield episode(bases[i % len(bases)], "none", 0.0, seed, steady=steady)
        for kind in EXPECTED:
            for size in SIZES if kind != "none" else ():
                for i in range(each):
                    seed += 1
                    yield episode(bases[i % len(bases)], kind, size, seed, steady=steady)


def missed_bars(outcomes: list[Outcome]) -> list[str]:
    """Return a sentence for each bar that is missed."""
    missed = []
    for steady, least in ((True, 0.3), (False, 3.0)):
        name = "at 1 %" if steady else "as recorded"
        large = [o for o in outcomes if o.steady == steady and o.size >= least]
        right = sum(o.right for o in large)
        if right < 0.95 * len(large):
            missed.append(f"{name}: {right} of {len(large)} right at {least:.0%} and more")
        accused = [
            o for o in outcomes
            if o.steady == steady and o.kind == "none" and o.verdict not in ("none", "unknown")
        ]  # fmt: skip
        if accused:
            missed.append(f"{name}: {len(accused)} healthy episodes accused: {accused[0].verdict}")
    errors = _onset_errors(outcomes)
    if np.mean(np.abs(errors) <= ONSET_STEPS) < 0.95:
        missed.append(f"onset within {ONSET_STEPS} steps in less than 95 %")
    return missed


def _onset_errors(outcomes: list[Outcome]) -> list[int]:
    return [
        o.onset_error
        for o in outcomes
        if o.steady and o.right and o.kind not in PASSING and o.onset_error is not None
    ]


def tables(outcomes: list[Outcome]) -> str:
    """Return the tables as Markdown."""
    lines = []
    for steady in (True, False):
        mine = [o for o in outcomes if o.steady == steady]
        title = "Variation shrunk to 1 %" if steady else "As recorded, on a busy machine"
        lines += [f"### {title}", "", "| fault | verdict wanted | "]
        lines[-1] += (
            " | ".join(f"{size:.0%}" for size in SIZES) + " | onset off by, median (95 %) |"
        )
        lines.append("|---|---|" + "---|" * (len(SIZES) + 1))
        for kind, verdict in EXPECTED.items():
            if kind == "none":
                continue
            cells = []
            for size in SIZES:
                cell = [o for o in mine if (o.kind, o.size) == (kind, size)]
                cells.append(f"{sum(o.right for o in cell)}/{len(cell)}")
            errors = np.abs(
                [o.onset_error for o in mine if o.kind == kind and o.onset_error is not None]
            )
            off = (
                f"{np.median(errors):.0f} ({np.quantile(errors, 0.95):.0f})" if len(errors) else ""
            )
            lines.append(f"| {kind} | `{verdict}` | {' | '.join(cells)} | {off} |")
        healthy = [o for o in mine if o.kind == "none"]
        quiet = sum(o.verdict == "none" for o in healthy)
        unknown = sum(o.verdict == "unknown" for o in healthy)
        accused = len(healthy) - quiet - unknown
        bound = 1 - lower_share(len(healthy) - accused, len(healthy))
        faulty = [o for o in mine if o.size >= 0.3]
        right = sum(o.right for o in faulty)
        lines += [
            "",
            f"Healthy: {len(healthy)} episodes, {quiet} `none`, {unknown} `unknown`, {accused} "
            f"accusations (at most {bound:.1%} with 95 % confidence).",
            f"Faulty, 30 % and more: {right} of {len(faulty)} with the right cause and ranks (at "
            f"least {lower_share(right, len(faulty)):.1%}); right cause "
            f"{sum(o.right_cause for o in faulty)}; nothing found "
            f"{sum(o.verdict in ('none', 'unknown') for o in faulty)}.",
            "",
        ]
    return "\n".join(lines)


def draw(outcomes: list[Outcome]) -> None:
    """Draw the share of right verdicts over the size of the fault."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "tailwatch"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for steady, label, mark in ((True, "variation 1 %", "o-"), (False, "as recorded", "s--")):
        shares = []
        for size in SIZES:
            cell = [o.right for o in outcomes if o.steady == steady and o.size == size]
            shares.append(100 * np.mean(cell))
        axes.plot(range(len(SIZES)), shares, mark, label=label)
    axes.set_xticks(range(len(SIZES)), [f"{size:.0%}" for size in SIZES])
    axes.set_xlabel("step is longer by")
    axes.set_ylabel("right cause and ranks, %")
    axes.set_ylim(0, 103)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(PICTURE, metadata={"Date": None})


def main() -> int:
    """Run and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--healthy", type=int, default=320, help="episodes without a fault")
    parser.add_argument("--each", type=int, default=4, help="episodes a fault and size")
    parser.add_argument("--seed", type=int, default=40_000)
    parser.add_argument("--write", action="store_true", help="write docs/diagnosis.md")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    started = time.monotonic()
    outcomes = list(episodes(arguments.healthy, arguments.each, arguments.seed))
    missed = missed_bars(outcomes)
    if arguments.json:
        print(json.dumps({"missed": missed, "outcomes": [o._asdict() for o in outcomes]}))
    else:
        print(tables(outcomes))
        print(f"{len(outcomes)} episodes in {time.monotonic() - started:.0f} s")
    if arguments.write:
        page = PAGE.read_text()
        begin, end = "<!-- episodes -->\n", "<!-- /episodes -->"
        head, tail = page.split(begin)[0], page.split(end)[1]
        PAGE.write_text(f"{head}{begin}\n{tables(outcomes)}\n{end}{tail}")
        draw(outcomes)
    for sentence in missed:
        print(f"bar missed: {sentence}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
