from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.core.errors import DeviceUnavailable
from polymux.device.cores import allowed_cores, bind_thread, bound_to, format_cores, parse_cores


@given(st.sets(st.integers(0, 300), min_size=1))
def test_what_is_formatted_is_read_back(cores: set[int]) -> None:
    ordered = tuple(sorted(cores))
    assert parse_cores(format_cores(ordered)) == ordered


@pytest.mark.parametrize(
    ("text", "cores"), [("0", (0,)), ("0-3", (0, 1, 2, 3)), ("4,0-1", (4, 0, 1)), ("2-2, 5", (2, 5))]
)
def test_a_list_of_cores_keeps_its_order(text: str, cores: tuple[int, ...]) -> None:
    assert parse_cores(text) == cores


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no core"),
        ("a", "'a' is no core"),
        ("-1", "no core"),
        ("0-", "no core"),
        ("3-1", "write 1-3"),
        ("0,0-1", "twice"),
        ("0-99999999", "longer"),
        ("0,,1", "no core"),
    ],
)
def test_a_text_that_is_no_list_of_cores_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_cores(text)


def test_the_calling_thread_is_bound_for_a_while_only() -> None:
    before = os.sched_getaffinity(0)
    first = allowed_cores()[0]
    seen: list[set[int]] = []

    def fail_while_bound() -> None:
        with bound_to(first):
            seen.append(os.sched_getaffinity(0))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_while_bound()
    assert seen == [{first}]
    assert os.sched_getaffinity(0) == before


def test_binding_to_a_core_that_is_not_there_is_refused_in_words() -> None:
    seen: list[BaseException] = []

    def bind() -> None:
        try:
            bind_thread((1023,))
        except DeviceUnavailable as error:
            seen.append(error)

    thread = threading.Thread(target=bind)
    thread.start()
    thread.join()
    assert "core 1023" in str(seen[0])
