"""What is found about one checkpoint that others wrote, and the verdict it amounts to.

Contract: a flaw is a sentence with the plain word of its fault in it, and an effect. The verdict is
that of the worst effect:

    unfinished    incomplete    its commit mark was never set: what else is wrong follows from that
    corrupt       corrupt       bytes are not what was written
    missing       incomplete    something is not there
    unreadable    unverifiable  nobody could look, so nobody should load it
    doubtful      unverifiable  complete as far as can be seen
    note          valid         worth a line

`valid` needs more than no flaw: every file that a loader reads was compared with a checksum that
the checkpoint carries. One that was not makes it `unverifiable`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tailwatch.integrity.names import State
from tailwatch.integrity.verify import CheckpointVerdict

Effect = Literal["unfinished", "corrupt", "missing", "unreadable", "doubtful", "note"]

_VERDICTS: dict[Effect, CheckpointVerdict] = {
    "unfinished": "incomplete",
    "corrupt": "corrupt",
    "missing": "incomplete",
    "unreadable": "unverifiable",
    "doubtful": "unverifiable",
    "note": "valid",
}
_ORDER: tuple[Effect, ...] = tuple(_VERDICTS)


class Damage(Exception):
    """A file is not what its own structure says; `fault` is the plain word, `text` ends a sentence.

    The sentence begins with the file: "optimizer.pt" + " is truncated: its end is missing".
    """

    def __init__(self, fault: str, text: str, effect: Effect = "corrupt") -> None:
        super().__init__(fault, text)
        self.fault = fault
        self.text = text
        self.effect: Effect = effect


class Flaw(msgspec.Struct, kw_only=True, frozen=True):
    """One thing to say; `file` is relative to the checkpoint, empty for the checkpoint itself."""

    file: str
    fault: str
    sentence: str
    effect: Effect


class Judgement(msgspec.Struct, kw_only=True):
    """One checkpoint that others wrote, while it is looked at.

    `sizes` has every file in bytes (None: not there), `unchecked` those whose bytes nothing vouches
    for. `world` says at which sizes of the job it loads.
    """

    name: str
    step: int | None
    format: str
    state: State = "committed"
    sizes: dict[str, int | None] = {}
    flaws: list[Flaw] = []
    unchecked: set[str] = set()
    world: str | None = None

    def add(self, file: str, fault: str, text: str, effect: Effect = "corrupt") -> None:
        """Note a flaw; `text` goes on after the name of the file."""
        place = f"{self.name}/{file}" if file not in ("", self.name) else self.name
        flaw = Flaw(file=file, fault=fault, sentence=f"{place} {text}", effect=effect)
        if flaw not in self.flaws:
            self.flaws.append(flaw)
        if file:
            self.sizes.setdefault(file, None)

    def damaged(self, file: str, damage: Damage) -> None:
        """Note a damage that a reader of the file has found."""
        self.add(file, damage.fault, damage.text, damage.effect)

    def has_flaw(self, file: str) -> bool:
        """Whether something worse than a note is known about a file."""
        return any(flaw.file == file and flaw.effect != "note" for flaw in self.flaws)

    @property
    def verdict(self) -> CheckpointVerdict:
        """The verdict of the worst flaw, or of what was not checked."""
        if not self.flaws and not self.sizes:
            return "empty"
        worst = min((_ORDER.index(flaw.effect) for flaw in self.flaws), default=len(_ORDER) - 1)
        verdict = _VERDICTS[_ORDER[worst]]
        return "unverifiable" if verdict == "valid" and self.unchecked else verdict

    @property
    def loadable(self) -> bool:
        """Whether a restart should take it: committed, and complete as far as can be seen."""
        return (
            self.state == "committed"
            and self.verdict in ("valid", "unverifiable")
            and all(flaw.effect in ("doubtful", "note") for flaw in self.flaws)
        )

    @property
    def reasons(self) -> list[str]:
        """The sentences, worst first, and why it is no more than unverifiable where it is."""
        ordered = sorted(self.flaws, key=lambda flaw: _ORDER.index(flaw.effect))
        sentences = [flaw.sentence for flaw in ordered]
        if self.unchecked and self.verdict == "unverifiable":
            first, *rest = sorted(self.unchecked, key=lambda name: (-(self.sizes[name] or 0), name))
            others = f" and {len(rest)} more" if rest else ""
            sentences.append(
                f"{self.name} is complete as far as can be seen, but there is no checksum"
                f" to check {first}{others} against"
            )
        return sentences
