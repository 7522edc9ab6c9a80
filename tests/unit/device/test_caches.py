from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from polymux.core.implementation import Implementation, PythonFunction
from polymux.core.kernel_spec import KernelSpec
from polymux.device.prepared_cache import PreparedCache
from polymux.device.shared_cache import SharedCache, file_identity


class Thing:
    def run(self, operands: object, scalars: object) -> None:
        pass


def test_a_kernel_is_prepared_once_per_name_and_implementation_object() -> None:
    cache, made = PreparedCache(), []

    def make(spec: KernelSpec, implementation: Implementation) -> Any:
        made.append(spec.name)
        return Thing()

    first, equal = PythonFunction(print), PythonFunction(print)
    a = cache.get(KernelSpec("a"), first, make)
    assert cache.get(KernelSpec("a"), first, make) is a
    assert cache.get(KernelSpec("b"), first, make) is not a
    assert cache.get(KernelSpec("a"), equal, make) is not a
    assert made == ["a", "b", "a"]
    cache.forget(first)
    cache.get(KernelSpec("a"), equal, make)
    assert len(made) == 3
    cache.get(KernelSpec("a"), first, make)
    assert len(made) == 4


def test_an_implementation_that_cannot_be_hashed_can_be_prepared() -> None:
    class Callable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> None:
            pass

    implementation = PythonFunction(Callable())
    with pytest.raises(TypeError):
        hash(implementation)
    assert PreparedCache().get(KernelSpec("k"), implementation, lambda *_: Thing())


def test_what_fails_to_be_prepared_is_tried_again() -> None:
    cache, implementation = PreparedCache(), PythonFunction(print)

    def fail(*_: object) -> Any:
        raise RuntimeError("not yet")

    with pytest.raises(RuntimeError):
        cache.get(KernelSpec("k"), implementation, fail)
    assert cache.get(KernelSpec("k"), implementation, lambda *_: Thing())


def test_a_shared_thing_is_made_once_while_somebody_holds_it() -> None:
    cache: SharedCache[Thing] = SharedCache()
    made = []

    def make() -> Thing:
        made.append(1)
        return Thing()

    held: Thing | None = cache.get("key", make)
    assert cache.get("key", make) is held
    assert len(made) == 1
    held = None
    gc.collect()
    cache.get("key", make)
    assert len(made) == 2


def test_threads_that_want_the_same_thing_get_the_same_one() -> None:
    cache: SharedCache[Thing] = SharedCache()
    together, got = threading.Barrier(4), []

    def want() -> None:
        together.wait(30)
        got.append(cache.get("key", Thing))

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, got))) == 1


def test_a_file_has_another_identity_when_its_content_was_replaced(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_text("one")
    link.symlink_to(path)
    before = file_identity(str(path))
    assert file_identity(str(link)) == before
    path.write_text("other")
    os.utime(path, ns=(1, 1))
    assert file_identity(str(path)) != before
    assert file_identity(str(tmp_path / "missing")) == (str(tmp_path / "missing"),)
