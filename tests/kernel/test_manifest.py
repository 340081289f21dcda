"""The manifest says what a run was made of, and leaves out what it cannot know."""

from __future__ import annotations

import json

import msgspec
import pytest

from tailwatch.manifest import describe


def _describe() -> dict[str, object]:
    manifest = describe(
        config={"layers": 2}, workload="w", nodes=["a", "b"], ranks_per_node=2, backend="gloo",
        plan="demo",
    )  # fmt: skip
    plain: dict[str, object] = json.loads(msgspec.json.encode(manifest))
    return plain


def test_the_manifest_names_what_makes_runs_comparable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configuration, libraries with digests, topology, environment and machine are in it."""
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    manifest = _describe()
    assert manifest["world_size"] == 4
    assert manifest["expert_parallel"] == {"backend": "gloo"}
    assert manifest["plan"] == "demo"
    libraries = manifest["libraries"]
    assert isinstance(libraries, dict)
    assert len(libraries["msgspec"]["record_sha256"]) == 64
    environment = manifest["environment"]
    assert isinstance(environment, dict)
    assert environment["NCCL_DEBUG"] == "INFO"


def test_the_manifest_keeps_secrets_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that do not change how torch communicates are not written down."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    assert "hunter2" not in json.dumps(_describe())


def test_without_git_there_is_no_git_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without git gives a manifest without a commit, not an error."""
    monkeypatch.setenv("PATH", "/nonexistent")
    assert _describe()["git"] is None
