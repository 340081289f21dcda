"""What the names of other people's checkpoints say: the step, and whether it was ever finished.

Contract: numbers are compared as numbers, so `1000steps` comes after `300steps`. A name that says
tmp, partial, unfinished or the like is never a candidate for a restart, whatever number is in it.
"""

from __future__ import annotations

import re

_LABELLED = re.compile(
    r"(?:^|[^a-z])(?:global_?step|step|steps|iter|iteration|iters|checkpoint|ckpt)[-_=.]?0*(\d{1,18})"
    r"(?!\d)",
    re.IGNORECASE,
)
_BEFORE = re.compile(
    r"(?<!\d)(\d{1,18})[-_]?(?:steps?|iters?|iterations?)(?![a-z]|[-_=]?\d)", re.IGNORECASE
)
_LAST_NUMBER = re.compile(r"(?<![\d.])(\d{1,18})(?=\D*$)")
_TEMPORARY = re.compile(
    r"(?:^|[-_.+])(?:tmp|temp|temporary|partial|incomplete|unfinished|staging|dirty|in-?progress"
    r"|inflight|writing|pending)(?:$|[-_.+\d])",
    re.IGNORECASE,
)
_WORKING = re.compile(r"(?:checkpoint|ckpt)[-_.]tmp", re.IGNORECASE)
_SUFFIX = re.compile(r"\.(?:ckpt|pt|pth|bin|nemo|tar|safetensors|distcp)$", re.IGNORECASE)


def labelled_step(name: str) -> int | None:
    """Return the step that a name calls so (`step-5`, `iter_0000005`, `5steps`), or None."""
    stem = _SUFFIX.sub("", name)
    # The step, where there is one, beats the epoch; `step=1000` beats `checkpoint_3-step=1000`.
    for pattern in (_BEFORE, _LABELLED):
        if found := pattern.findall(stem):
            return int(found[-1])
    return None


def parse_step(name: str) -> int | None:
    """Return the step of a name, also of one that has but a number (`1000`, `model_1000.pt`)."""
    step = labelled_step(name)
    if step is not None:
        return step
    stem = _SUFFIX.sub("", name)
    if re.fullmatch(r"\d{1,18}", stem):
        return int(stem)
    match = _LAST_NUMBER.search(stem) if re.search(r"[-_=]\d+$|epoch", stem) else None
    return int(match[1]) if match else None


def is_temporary(name: str) -> bool:
    """Whether a name says that writing was never finished."""
    return bool(_TEMPORARY.search(name) or _WORKING.search(name))


def shown(text: str) -> str:
    """Return text that fits one line and any encoding: odd characters and bytes are escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )
