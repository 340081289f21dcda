"""One file, whatever it is: is there anything in it, and does it hold together?

Contract: `examine` finds what no loader says plainly (empty, zeros, a git-lfs pointer, a web page,
a link to nothing, a directory in a file's place) and lets the reader of the file's format check the
rest. Nothing that is in a file raises; what cannot be read for want of permission is `unreadable`,
what the disk cannot give back is a damage.

Cost: one pass over files that carry checksums, the head of others.
"""

from __future__ import annotations

import errno
import re
from typing import Any

import msgspec

from tailwatch.integrity.foreign import archive, bundle, safetensors, torch_save
from tailwatch.integrity.foreign.findings import Damage, Judgement
from tailwatch.integrity.foreign.tree import Entry, Opened, Window

JSON_BYTES = 64 * 1024 * 1024

_TORCH = (".pt", ".pth", ".ckpt", ".pkl", ".distcp")
_TORCH_BIN = re.compile(r"(?:pytorch_model|adapter_model|optimizer|scheduler|scaler|training_args)")
# Text beside a checkpoint that no loader takes state from.
_ASIDE = re.compile(
    r".*\.(?:md|py|txt|log|yaml|yml|toml|jinja|csv|lock|sha256|md5)|\.git.*|latest\S*|last\S*",
    re.IGNORECASE,
)
MARKER = re.compile(
    r"\.?_?(?:success|complete|completed|done|finished|committed|ready)"
    r"|commit_success\.txt|\.?(?:rank|node|worker)[-_]?\d+[-_.](?:complete|completed|done|success)"
    r"|.*\.(?:done|complete|completed)",
    re.IGNORECASE,
)


class Content(msgspec.Struct):
    """What was learned: the saved value of a torch file, the tensors of a safetensors file."""

    value: Any = None
    tensors: dict[str, safetensors.Tensor] | None = None
    weights: bool = False


def examine(entry: Entry, judgement: Judgement) -> Content:
    """Check one entry of a checkpoint and note what is wrong with it."""
    name = entry.name
    if entry.kind == "directory":
        if name.lower().endswith((*_TORCH, ".safetensors", ".json")):
            judgement.add(name, "directory", "is a directory where a file should be")
        return Content()
    judgement.sizes[name] = entry.size if entry.kind == "file" else None
    if entry.kind != "file":
        _not_a_file(entry, judgement)
        return Content()
    if MARKER.fullmatch(entry.base):
        return Content()
    try:
        with Opened(entry.path) as window:
            return _examine(entry, window, judgement)
    except Damage as damage:
        judgement.damaged(name, damage)
    except FileNotFoundError:
        judgement.add(name, "missing", "is missing: it went away while it was looked at", "missing")
    except OSError as error:
        if error.errno == errno.EIO:
            judgement.add(name, "unreadable", "is unreadable: the disk gives an I/O error")
        else:
            text = "is unreadable: no permission to open it"
            judgement.add(name, "unreadable", text, "unreadable")
    return Content()


def sniff(window: Window) -> None:
    """Raise Damage when a file that should hold data holds what is found instead of any format."""
    head = window.read(0, 1024)
    if not head.strip(b"\0") and window.trailing_zeros() == window.size:
        raise Damage("zeros", f"holds nothing but zeros: {window.size} of them")
    if head.startswith((b"version https://git-lfs", b"version https://hawser")):
        text = f"is a git-lfs pointer of {window.size} bytes: what it stands for was never fetched"
        raise Damage("git-lfs pointer", text, "missing")
    if re.match(rb"\s*<(?:!doctype|html|\?xml|Error)", head, re.IGNORECASE):
        raise Damage("changed", "is changed: a web page or error message was stored in its place")


def _not_a_file(entry: Entry, judgement: Judgement) -> None:
    if entry.kind == "dangling":
        text = "is dangling: a link to something that is missing"
        judgement.add(entry.name, "dangling", text, "missing")
    elif entry.kind == "loop":
        text = "is dangling: a link that leads back to itself in a loop"
        judgement.add(entry.name, "dangling", text, "missing")
    elif entry.kind == "special":
        judgement.add(entry.name, "special", "is no regular file, so it was not opened")
    else:
        text = "is unreadable: no permission to look at it"
        judgement.add(entry.name, "unreadable", text, "unreadable")


def _examine(entry: Entry, window: Window, judgement: Judgement) -> Content:
    name, base = entry.name, entry.base.lower()
    head = window.read(0, 1024)
    weighty = _is_data(base)
    if not head:
        if weighty:
            raise Damage("empty", "is empty: 0 bytes")
        return Content()
    if weighty:
        sniff(window)
    if base.endswith(".safetensors"):
        judgement.unchecked.add(name)
        return Content(tensors=safetensors.read(window), weights=True)
    if base.endswith(".json"):
        judgement.unchecked.add(name)
        return Content(value=_json(window))
    if base.endswith((".nemo", ".tar")):
        return Content(value=bundle.read(window, name, judgement), weights=True)
    if base.endswith(_TORCH) or (base.endswith(".bin") and _is_torch_bin(base, head)):
        saved = torch_save.read(window)
        if not saved.checked:
            judgement.unchecked.add(name)
        return Content(value=saved.value, weights=True)
    if head.startswith(archive.SIGNATURE):
        checked = archive.check(window, archive.members(window))
    else:
        checked = bool(_ASIDE.fullmatch(base))
    if not checked:
        judgement.unchecked.add(name)
    return Content()


def _is_data(base: str) -> bool:
    return base.endswith((*_TORCH, ".safetensors", ".bin", ".nemo", ".tar", ".npz", ".json"))


def _is_torch_bin(base: str, head: bytes) -> bool:
    return bool(_TORCH_BIN.match(base)) or head.startswith(archive.SIGNATURE)


def _json(window: Window) -> Any:
    if window.size > JSON_BYTES:
        raise Damage("too large", "is too large to be looked at", "doubtful")
    data = window.read(0, window.size)
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        zeros = len(data) - len(data.rstrip(b"\0"))
        if zeros:
            raise Damage("zeros", f"ends in {zeros} zeros: its tail was never written") from error
        if not data.rstrip().endswith((b"}", b"]")):
            raise Damage("truncated", "is truncated: its JSON has no end") from error
        raise Damage("changed", "is changed: it is no JSON") from error
