"""Files of torch.save, against torch itself."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.foreign import only, saved, values
from tailwatch.integrity.foreign import pickles, torch_save
from tailwatch.integrity.foreign.archive import members as archive_members
from tailwatch.integrity.foreign.findings import Damage
from tailwatch.integrity.foreign.tree import Opened


def read(path: Path) -> torch_save.Saved:
    """Read a file as the audit does."""
    with Opened(path) as window:
        return torch_save.read(window)


def state() -> dict[str, Any]:
    """Return something with tensors of several kinds, a view, and plain values."""
    base = values(1, 64)
    return {
        "w": base.reshape(8, 8),
        "view": base[3:9],
        "half": values(2, 16).bfloat16(),
        "step": 7,
        "nested": {"flags": torch.tensor([True, False]), "name": "x" * 40},
        "complex": torch.view_as_complex(values(3, 8).reshape(4, 2)),
    }


def same(a: Any, b: Any) -> bool:
    """Whether two loaded values are equal to the last bit."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    return bool(a == b)


def test_a_whole_file_is_valid(tmp_path: Path) -> None:
    """Every member matches its CRC-32 and all storages are there: valid."""
    path = saved(tmp_path / "state.pt", state())
    found = read(path)
    assert found.checked
    assert torch_save.number(found.value, "step") == 7
    assert only(path).verdict == "valid"


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("seed", range(2))
def test_no_flip_that_torch_would_suffer_from_is_valid(tmp_path: Path, seed: int) -> None:
    """Whatever byte changes: when torch fails or loads other values, the verdict is not valid.

    The oracle is torch.load alone; it says nothing itself about most of these.
    """
    path = saved(tmp_path / "state.pt", {"w": values(seed, 24), "n": {"step": seed}})
    whole = path.read_bytes()
    truth = torch.load(path)
    silent = 0
    for offset in range(seed, len(whole), 5):
        data = bytearray(whole)
        data[offset] ^= 1 << (offset % 8)
        path.write_bytes(data)
        try:
            loaded = torch.load(path, weights_only=True)
            harmless = same(truth, loaded)
            silent += not harmless
        except Exception:
            harmless = False
        verdict = only(path).verdict
        assert harmless or verdict == "corrupt", f"byte {offset}: {verdict}"
    assert silent > 10


def test_no_flip_in_a_member_is_missed(tmp_path: Path) -> None:
    """A flip of any byte of any member's data is corrupt, and the member is named."""
    path = saved(tmp_path / "state.pt", {"w": values(5, 8)})
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    with Opened(path) as window:
        places = {m.name: (m.offset, m.size) for m in archive_members(window)}
    assert set(places) == {m.filename for m in members}
    for name, (offset, size) in places.items():
        for at in range(offset, offset + size):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
            found = only(path)
            assert found.verdict == "corrupt"
            assert f"member {name} does not match its CRC-32" in found.reasons[0]


@pytest.mark.parametrize("cut", [1, 21, 22, 100, 500, 0.5, 0.9])
def test_a_cut_file_is_truncated(tmp_path: Path, cut: float) -> None:
    """A file that lost its end is truncated; one filled up with zeros says zeros."""
    path = saved(tmp_path / "state.pt", state())
    size = path.stat().st_size
    os.truncate(path, int(size * (1 - cut)) if cut < 1 else size - int(cut))
    assert "truncated" in only(path).reasons[0]
    os.truncate(path, size + 4096)
    found = only(path)
    assert found.verdict == "corrupt"
    assert "zeros" in found.reasons[0]


def test_without_checksums_it_is_unverifiable(tmp_path: Path) -> None:
    """When torch was told to leave out the CRC-32, nothing vouches for the bytes."""
    torch.serialization.set_crc32_options(False)
    try:
        path = saved(tmp_path / "state.pt", state())
    finally:
        torch.serialization.set_crc32_options(True)
    found = only(path)
    assert found.verdict == "unverifiable"
    assert "no checksum" in found.reasons[0]
    os.truncate(path, path.stat().st_size - 9)
    assert only(path).verdict == "corrupt"


def test_the_old_form(tmp_path: Path) -> None:
    """The form of before torch 1.6 has no checksums, but a missing or extra tail is seen."""
    path = tmp_path / "old.pt"
    torch.save({"w": values(1, 64), "step": 3}, path, _use_new_zipfile_serialization=False)
    assert only(path).verdict == "unverifiable"
    assert torch_save.number(read(path).value, "step") == 3
    whole = path.read_bytes()
    for data, word in ((whole[:-1], "truncated"), (whole + b"x", "longer"), (whole[:40], "")):
        path.write_bytes(data)
        found = only(path)
        assert found.verdict == "corrupt"
        assert word in found.reasons[0]


def test_members_that_contradict_the_pickle(tmp_path: Path) -> None:
    """A storage that data.pkl refers to must be there, in its size, though all CRCs match."""
    path = saved(tmp_path / "state.pt", {"w": values(1, 64)})
    with zipfile.ZipFile(path) as archive:
        contents = {m.filename: archive.read(m) for m in archive.infolist()}
    for change, word in (
        ({"state/data/0": b"short"}, "bytes"),
        ({"state/data/0": None}, "missing"),
    ):
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in (contents | change).items():
                if data is not None:
                    archive.writestr(name, data)
        found = only(path)
        assert found.verdict == "corrupt"
        assert word in found.reasons[0]


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """A member that would unpack to thousands of times its size is left alone, and said so."""
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/data.pkl", bytes(64 << 20))
    found = only(path)
    assert found.verdict == "unverifiable"
    assert "not looked at" in found.reasons[0]


def test_packed_members_are_checked(tmp_path: Path) -> None:
    """An archive that somebody packed again is read in pieces and compared."""
    path = saved(tmp_path / "state.pt", {"w": values(1, 64)})
    with zipfile.ZipFile(path) as archive:
        contents = {m.filename: archive.read(m) for m in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            kind = zipfile.ZIP_STORED if name.endswith("data.pkl") else zipfile.ZIP_DEFLATED
            archive.writestr(name, data, compress_type=kind)
    assert only(path).verdict == "valid"


def test_a_claim_of_a_huge_directory_costs_nothing(tmp_path: Path) -> None:
    """A sparse file of a terabyte whose end claims a directory of as much is refused at once."""
    path = tmp_path / "huge.pt"
    with path.open("wb") as file:
        file.write(b"PK\x03\x04")
        file.truncate(1 << 40)
        file.seek(1 << 40)
        length = (1 << 40) - 4
        end64 = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 0, 45, 0, 0, 9, 9, length, 4)
        file.write(end64 + struct.pack("<4sIQI", b"PK\x06\x07", 0, 1 << 40, 1))
        file.write(struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 9, 9, 0xFFFFFFFF, 4, 0))
    found = only(path)
    assert found.verdict == "unverifiable"
    assert "too large" in found.reasons[0]


class Trap:
    """Unpickling this writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self.path}",))


def test_nothing_in_a_pickle_runs(tmp_path: Path) -> None:
    """A pickle that would run a command is read as data; the command is named and not run."""
    path = tmp_path / "trap.pt"
    torch.save({"step": 5, "trap": Trap(tmp_path / "sprung")}, path)
    found = read(path)
    assert not (tmp_path / "sprung").exists()
    trap = pickles.lookup(found.value, "trap")
    assert isinstance(trap, pickles.Made)
    assert trap.name.endswith("system")
    assert torch_save.number(found.value, "step") == 5


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text()
        | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
        max_leaves=20,
    ),
    st.integers(3, pickle.HIGHEST_PROTOCOL),
)
@settings(max_examples=60, deadline=None)
def test_plain_values_are_read_as_pickle_reads_them(value: Any, protocol: int) -> None:
    """For values that need no class, the reader gives what `pickle.loads` gives."""
    data = pickle.dumps(value, protocol=protocol)
    loaded = pickles.load(data + b"more")
    assert loaded.value == value
    assert loaded.length == len(data)


@given(st.binary(max_size=200))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_damage_and_no_more(data: bytes) -> None:
    """Whatever the bytes are, the pickle reader returns or raises Damage."""
    with contextlib.suppress(Damage):
        assert pickles.load(b"\x80\x04" + data).length > 2


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04K\x01r\xff\xff\xff\x7f.",
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fx.",
        b"\x80\x02})" + b"\x85" * 200_000 + b"K\x01s.",
        b"\x80\x02" + b"(" * 100_000 + b".",
        b"\x80\x02]q\x00h\x00a.",
    ],
    ids=["memo", "length", "deep key", "marks", "cycle"],
)
def test_pickles_made_to_hurt(tmp_path: Path, data: bytes) -> None:
    """Huge memo numbers and lengths, deep keys and cycles neither crash nor eat the memory."""
    path = tmp_path / "state.pt"
    path.write_bytes(data)
    assert only(path).verdict in ("corrupt", "unverifiable")


def test_crc_of_an_empty_storage(tmp_path: Path) -> None:
    """Tensors without elements have members without bytes, whose CRC-32 is zero: still valid."""
    path = saved(tmp_path / "state.pt", {"none": torch.empty(0), "w": values(1, 4)})
    assert zlib.crc32(b"") == 0
    assert only(path).verdict == "valid"
    buffer = io.BytesIO(path.read_bytes())
    assert same(torch.load(buffer)["none"], torch.empty(0))
