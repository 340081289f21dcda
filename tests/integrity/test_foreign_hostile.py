"""Directories that would lead a careless reader astray: links, odd names, odd files, chaos."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.foreign import (
    cli,
    deepspeed,
    hugging_face,
    megatron,
    only,
    saved,
    values,
    whole_dcp,
)
from tailwatch.integrity import EXIT_CODES, Audit, CheckpointVerdict, audit


def whole(root: Path) -> Path:
    """Write a checkpoint of one file."""
    return saved(root / "step-7" / "model.pt", {"w": values(1)}).parent


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda path: path.symlink_to("nowhere"), "dangling"),
        (lambda path: path.symlink_to(path), "loop"),
        (lambda path: path.mkdir(), "directory"),
        (os.mkfifo, "no regular file"),
    ],
    ids=["dangling", "loop", "directory", "fifo"],
)
def test_what_lies_where_a_file_should(
    tmp_path: Path, spoil: Callable[[Path], object], word: str
) -> None:
    """A link to nothing or itself, a directory and a FIFO are named, followed and opened never."""
    step = whole(tmp_path)
    spoil(step / "optimizer.pt")
    result = audit(tmp_path)
    assert result.verdict in ("corrupt", "incomplete")
    assert result.would_load is None
    assert "step-7/optimizer.pt is " in result.candidates[0].reasons[0]
    assert word in result.candidates[0].reasons[0]


def test_a_directory_that_contains_itself(tmp_path: Path) -> None:
    """A link to a directory above is not followed for ever."""
    step = whole(tmp_path)
    (step / "again").symlink_to(tmp_path)
    (step / "self").symlink_to(".")
    found = audit(tmp_path)
    assert len(found.candidates[0].files) < 10
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "loop").symlink_to(tmp_path / "only")
    assert audit(tmp_path / "only").verdict in get_args(CheckpointVerdict)


def test_links_to_files_are_followed(tmp_path: Path) -> None:
    """A checkpoint whose files are links to files elsewhere is as good as those."""
    step = whole(tmp_path)
    elsewhere = tmp_path / "blobs"
    elsewhere.mkdir()
    (step / "model.pt").rename(elsewhere / "abc")
    (step / "model.pt").symlink_to("../blobs/abc")
    assert only(step).verdict == "valid"


@pytest.mark.parametrize("text", ["", "step-5", "step-7"])
def test_latest_as_a_link(tmp_path: Path, text: str) -> None:
    """A link `latest` is a pointer: a target that is there is fine, any other is dangling."""
    whole(tmp_path)
    (tmp_path / "latest").symlink_to(text or "latest")
    result = audit(tmp_path)
    if text == "step-7":
        assert (result.verdict, result.latest) == ("valid", "step-7")
    else:
        assert result.verdict == "incomplete"
        assert "dangling" in result.candidates[0].reasons[0]
    assert result.would_load == "step-7"


@pytest.mark.parametrize(
    ("code", "verdict"), [(errno.EACCES, "unverifiable"), (errno.EIO, "corrupt")]
)
def test_a_file_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, verdict: str
) -> None:
    """Without permission nothing is known, with an I/O error the bytes are gone; neither loads."""
    step = whole(tmp_path)
    really = os.open

    def refusing(path: Path, flags: int, mode: int = 0o777) -> int:
        if str(path).endswith("model.pt"):
            raise OSError(code, os.strerror(code), str(path))
        return really(path, flags, mode)

    monkeypatch.setattr(os, "open", refusing)
    result = audit(step)
    assert (result.verdict, result.would_load) == (verdict, None)
    assert "model.pt is unreadable" in result.candidates[0].reasons[0]


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """Line breaks and bytes that are no text survive JSON and stay on one line elsewhere."""
    step = whole(tmp_path)
    for name in (b"two\nlines.pt", b"bytes\xff.pt", "café\x1b[31m.pt".encode()):
        path = os.path.join(os.fsencode(step), name)
        with open(path, "wb"):
            pass
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run\xff\n"))
    step.rename(step.with_name("step-8"))
    odd.mkdir()
    (tmp_path / "step-8").rename(odd / "step-8")
    outcome = cli("verify", odd, "--json")
    assert outcome.returncode == 1
    assert outcome.stderr == b""
    assert outcome.stdout.count(b"\n") == 1
    result = msgspec.json.decode(outcome.stdout, type=Audit)
    assert [f.name for f in result.candidates[0].files if f.faults] == [
        "bytes\\udcff.pt",
        "café\x1b[31m.pt",
        "two\nlines.pt",
    ]
    assert all(reason.isprintable() for reason in result.candidates[0].reasons)
    plain = cli("verify", odd)
    assert plain.returncode == 1
    assert b"two\\nlines.pt is empty" in plain.stdout
    assert b"\x1b[31m" not in plain.stdout


def test_a_deep_and_a_wide_tree(tmp_path: Path) -> None:
    """What lies too deep is not looked at, and that is said."""
    step = whole(tmp_path)
    deep = step.joinpath(*["d"] * 9)
    deep.mkdir(parents=True)
    (deep / "x.pt").write_bytes(b"")
    found = only(step)
    assert found.verdict == "unverifiable"
    assert "more below it than is looked at" in found.reasons[0]


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory of each framework."""
    root = tmp_path_factory.mktemp("layouts")
    for step in (10, 20):
        hugging_face(root / "hugging_face", step, shards=2)
        megatron(root / "megatron", step)
        deepspeed(root / "deepspeed", step, dp=2)
        whole_dcp(root / "dcp" / f"step-{step}")
        saved(root / "lightning" / f"step={step}.ckpt", {"w": values(step)})
    (root / "dcp" / "latest").write_text("step-20")
    return root


OPERATIONS = (
    "cut", "flip", "zero", "empty", "grow", "delete", "swap", "pointer", "directory", "dangling",
    "loop", "rename", "text", "fifo", "copy",
)  # fmt: skip


def _mutate(root: Path, operation: str, at: int, where: int) -> None:
    files = sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink())
    if not files:
        return
    path, other = files[at % len(files)], files[where % len(files)]
    data = path.read_bytes()
    place = where % max(len(data), 1)
    match operation:
        case "cut":
            os.truncate(path, place)
        case "flip" if data:
            path.write_bytes(data[:place] + bytes([data[place] ^ 1 << at % 8]) + data[place + 1 :])
        case "zero":
            path.write_bytes(data[:place] + bytes(len(data) - place))
        case "empty":
            path.write_bytes(b"")
        case "grow":
            path.write_bytes(data + bytes(where % 5000))
        case "swap":
            path.write_bytes(other.read_bytes())
            other.write_bytes(data)
        case "pointer":
            path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n")
        case "rename":
            path.rename(path.with_name(f"{'tmp-' * (at % 2)}{where % 1000}\n{path.name}"))
        case "text":
            path.write_text('{"global_step": [1], "weight_map": {"a": "../../b"}, "files": {}}')
        case "copy":
            with contextlib.suppress(shutil.Error, FileExistsError):  # A FIFO is not copied.
                shutil.copytree(path.parent, root / f"step-{where}", symlinks=True)
        case "delete" | "directory" | "dangling" | "loop" | "fifo":
            path.unlink()
            if operation == "directory":
                path.mkdir()
            elif operation == "fifo":
                os.mkfifo(path)
            elif operation != "delete":
                path.symlink_to(path if operation == "loop" else "nowhere")


@given(
    layout=st.sampled_from(["hugging_face", "megatron", "deepspeed", "dcp", "lightning"]),
    changes=st.lists(
        st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 50), st.integers(0, 20_000)),
        max_size=5,
    ),
)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_no_tree_makes_a_traceback(
    layouts: Path, tmp_path: Path, layout: str, changes: list[tuple[str, int, int]]
) -> None:
    """Whatever happens to a tree, the audit comes to a verdict that is consistent in itself."""
    root = tmp_path / "tree"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(layouts / layout, root)
    for operation, at, where in changes:
        _mutate(root, operation, at, where)
    result = audit(root)
    assert msgspec.json.decode(msgspec.json.encode(result), type=Audit) == result
    assert result.verdict in EXIT_CODES
    names = {c.name: c for c in result.candidates}
    if result.would_load is not None:
        assert names[result.would_load].verdict in ("valid", "unverifiable")
        assert names[result.would_load].state == "committed"
        assert result.steps_lost is not None
        assert result.steps_lost >= 0
    for candidate in result.candidates:
        assert all(reason.isprintable() for reason in candidate.reasons)
        assert candidate.reasons or candidate.verdict in ("valid", "empty")
    if result.candidates:
        newest = result.candidates[0]
        assert (result.verdict, result.latest or newest.name) == (newest.verdict, newest.name)
