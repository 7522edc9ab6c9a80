from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from polymux.core.errors import DeviceUnavailable
from polymux.device import pocl

AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
AVX2 = {"avx2", "fma", "bmi1", "bmi2", "f16c", "abm"}
AVX = {"avx", "sse4_1", "sse4_2"}


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (AVX | AVX2 | AVX512, "skylake-avx512"),
        (AVX | AVX2, "haswell"),
        (AVX | {"f16c", "rdrand"}, "ivybridge"),
        (AVX, "sandybridge"),
        ({"sse4_1", "sse4_2", "popcnt"}, "nehalem"),
        ({"sse2"}, None),
        (set(), None),
    ],
)
def test_a_processor_has_the_name_of_an_older_one_with_the_same_instructions(
    flags: set[str], name: str | None
) -> None:
    assert pocl.processor_name(flags) == name


@pytest.mark.parametrize("flags", [AVX | AVX2 | {"avx512f"}, AVX | AVX2 - {"bmi2"}])
def test_a_processor_with_some_of_the_instructions_only_has_no_counterpart(flags: set[str]) -> None:
    assert pocl.processor_name(flags) is None


class Structure:
    """Looks like the beginning of PoCL's device structure."""

    def __init__(self, *texts: bytes | int) -> None:
        self.texts = [ctypes.create_string_buffer(t) if isinstance(t, bytes) else t for t in texts]
        words = [t if isinstance(t, int) else ctypes.addressof(t) for t in self.texts]
        self.words = (ctypes.c_uint64 * 512)(*words)

    def device(self) -> Any:
        return SimpleNamespace(
            int_ptr=ctypes.addressof(self.words),
            driver_version="3.0-rc2",
            version="OpenCL 3.0 PoCL HSTR: x-generic",
        )


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pocl, "_taught", {})
    monkeypatch.setattr(pocl, "cpu_flags", lambda: frozenset(AVX | AVX2))


def test_the_name_behind_the_target_triple_is_replaced_once(flags: None) -> None:
    structure = Structure(b"generic", 7, 0, b"x86_64-unknown-linux-gnu", b"generic", b"generic")
    before = list(structure.words[:6])
    assert pocl.teach_cpu(structure.device()) == "haswell"
    assert ctypes.string_at(structure.words[4]) == b"haswell"
    assert [*structure.words[:4], structure.words[5]] == [*before[:4], before[5]]
    taught = structure.words[4]
    assert pocl.teach_cpu(structure.device()) == "haswell"
    assert structure.words[4] == taught


@pytest.mark.parametrize(
    "texts", [(b"generic",), (b"x86_64-unknown-linux-gnu", b"znver3"), (b"aarch64", b"generic"), (8,)]
)
def test_a_structure_that_looks_otherwise_is_left_alone(flags: None, texts: tuple[Any, ...]) -> None:
    structure = Structure(*texts)
    before = list(structure.words)
    with pytest.raises(
        DeviceUnavailable, match=r"PoCL 3\.0-rc2 does not know this processor.*pocl-opencl-icd"
    ):
        pocl.teach_cpu(structure.device())
    assert list(structure.words) == before


def test_a_processor_without_counterpart_leaves_the_structure_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pocl, "cpu_flags", lambda: frozenset({"sse2"}))
    structure = Structure(b"x86_64-unknown-linux-gnu", b"generic")
    before = list(structure.words)
    with pytest.raises(DeviceUnavailable):
        pocl.teach_cpu(structure.device())
    assert list(structure.words) == before


def test_an_address_that_is_not_mapped_is_no_accident(flags: None) -> None:
    device = SimpleNamespace(int_ptr=4096, driver_version="3.0", version="generic")
    with pytest.raises(DeviceUnavailable):
        pocl.teach_cpu(device)


def test_what_pocl_compiles_goes_below_the_users_cache_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: None
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("POCL_CACHE_DIR", raising=False)
    pocl.set_environment()
    assert os.environ["POCL_CACHE_DIR"] == str(tmp_path / "polymux" / "pocl" / "haswell")
    assert (tmp_path / "polymux" / "pocl" / "haswell").is_dir()


def test_a_cache_folder_that_cannot_be_made_is_replaced_by_a_temporary_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: None
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("POCL_CACHE_DIR", raising=False)
    pocl.set_environment()
    assert os.environ["POCL_CACHE_DIR"].startswith(str(tmp_path / "polymux-pocl-"))


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCL_CACHE_DIR", "/their/own")
    monkeypatch.setenv("POCL_AFFINITY", "0")
    pocl.set_environment()
    assert (os.environ["POCL_CACHE_DIR"], os.environ["POCL_AFFINITY"]) == ("/their/own", "0")


def test_threads_are_bound_only_where_all_cores_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCL_CACHE_DIR", "/their/own")
    for cores, expected in (((0, 1), ("1", None)), ((1,), (None, "1"))):
        monkeypatch.delenv("POCL_AFFINITY", raising=False)
        monkeypatch.delenv("POCL_MAX_PTHREAD_COUNT", raising=False)
        monkeypatch.setattr(pocl, "allowed_cores", lambda cores=cores: cores)
        monkeypatch.setattr(os, "cpu_count", lambda: 2)
        pocl.set_environment()
        assert (os.environ.get("POCL_AFFINITY"), os.environ.get("POCL_MAX_PTHREAD_COUNT")) == expected
