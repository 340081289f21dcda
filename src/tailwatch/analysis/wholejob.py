"""Everybody slow alike: cause `whole_job`.

Contract: there are no peers to compare with, only the past, so this is asked for when no other
cause explains enough, and a passing load on the machines is not one.

Cost: a few medians.
"""

from __future__ import annotations

import numpy as np

from tailwatch.analysis.candidate import (
    PEER_SHARE,
    Candidate,
    Steps,
    by_kind,
    candidate_of,
    inside,
    lasting,
)
from tailwatch.analysis.series import shifts


def whole_job(steps: Steps) -> Candidate | None:
    """All ranks alike need longer for the same work than they did."""
    own = np.sum([np.nan_to_num(work.seconds) for work in steps.work], axis=0)
    middle = np.median(own, axis=1)
    tokens = np.nan_to_num(np.nanmedian(steps.table.tokens, axis=1))
    usual_tokens = by_kind(steps, tokens)
    more = np.where(usual_tokens > 0, np.maximum(tokens / np.maximum(usual_tokens, 1.0), 1.0), 1.0)
    over = middle - by_kind(steps, middle) * more
    found = shifts(over[:, None], PEER_SHARE * steps.usual, period=steps.period)
    found = lasting(steps, found, over)
    if not found:
        return None
    shift = found[0]
    part = slice(shift.first, shift.last + 1)
    ratio = float(middle[part].sum() / by_kind(steps, middle)[part].sum())
    return candidate_of(
        "whole_job",
        [],
        [shift],
        inside(over, shift),
        f"all ranks alike need {ratio:.2f} times as long for the same work: clocks, heat, code or "
        "configuration, not a rank",
    )
