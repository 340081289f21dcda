"""The fake NVML against nvidia-ml-py, and the agent's calls against both."""

from __future__ import annotations

import ctypes
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from support.checkout import ROOT
from support.nvml.fake import compiled
from tailwatch.agents.node.nvml.library import INVALID_ARGUMENT, UNSUPPORTED

pynvml: Any = importlib.import_module("pynvml")

_NODE = ROOT / "agents" / "node"
_FAKE = ROOT / "tests/support/nvml"
_SIZES = re.findall(r'LAYOUT\("(\w+)"', (_FAKE / "events.h").read_text())
_PLACES = re.findall(r'OFFSET\("([\w.]+)"', (_FAKE / "events.h").read_text())


def _called() -> set[str]:
    files = [*(_NODE / "nvml").glob("*.py"), *(_NODE / "collectors").glob("*.py")]
    return {
        name
        for file in [*files, *_NODE.glob("*.py")]
        for name in re.findall(r'"(nvml[A-Z]\w+)"', file.read_text())
    }


@pytest.mark.parametrize("name", _SIZES)
def test_structures_have_the_size_that_nvidia_ml_py_gives_them(name: str) -> None:
    """A structure of the fake is as large as the one that nvidia-ml-py hands in."""
    fake = ctypes.CDLL(str(compiled()))
    assert fake.fakeSize(name.encode()) == ctypes.sizeof(getattr(pynvml, name))


@pytest.mark.parametrize("member", _PLACES)
def test_members_lie_where_nvidia_ml_py_looks(member: str) -> None:
    """A member of a structure lies where nvidia-ml-py reads it."""
    structure, name = member.split(".")
    fake = ctypes.CDLL(str(compiled()))
    assert fake.fakeOffset(member.encode()) == getattr(getattr(pynvml, structure), name).offset


def test_every_call_is_one_of_nvidia_ml_py_and_of_the_fake() -> None:
    """What the agent calls exists in nvidia-ml-py, with its symbol in the fake."""
    fake = ctypes.CDLL(str(compiled()))
    source = Path(pynvml.__file__).read_text()
    called = _called()
    assert {"nvmlDeviceGetFieldValues", "nvmlGpmSampleGet", "nvmlEventSetCreate"} <= called
    for name in called:
        assert callable(getattr(pynvml, name))
        body = source.split(f"\ndef {name}(", 1)[1].split("\ndef ", 1)[0]
        symbols = re.findall(r'FunctionPointer\("(\w+)"\)', body)
        assert all(hasattr(fake, symbol) for symbol in symbols), (name, symbols)


def test_a_symbol_can_be_left_out() -> None:
    """A library that is compiled without a symbol is one of an older driver."""
    fake = ctypes.CDLL(str(compiled(without=("nvmlDeviceGetGpuFabricInfoV",))))
    assert not hasattr(fake, "nvmlDeviceGetGpuFabricInfoV")
    assert hasattr(fake, "nvmlDeviceGetCount_v2")


def test_codes_are_nvmls_own() -> None:
    """The names and numbers of results that the agent knows are those of nvidia-ml-py."""
    assert pynvml.NVML_ERROR_INVALID_ARGUMENT == INVALID_ARGUMENT
    for code in UNSUPPORTED:
        assert hasattr(pynvml, f"NVML_ERROR_{code}")
