"""Policies are found by name: the built-in ones and those of installed packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from polymux.core.errors import InvalidRequest
from polymux.policy import catalogue, registry
from polymux.policy.round_robin import RoundRobin


def install(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    points = EntryPoints(EntryPoint(name, value, registry.GROUP) for name, value in values.items())
    monkeypatch.setattr(catalogue, "entry_points", lambda group: points.select(group=group))


def test_the_default_is_round_robin() -> None:
    assert isinstance(registry.load(), RoundRobin)


@pytest.mark.parametrize("name", registry.POLICIES)
def test_every_policy_in_the_table_loads_under_its_own_name_and_has_a_summary(name: str) -> None:
    assert registry.load(name).name == name  # type: ignore[attr-defined]
    assert registry.load(name) is not registry.load(name)
    assert len(registry.summaries()[name]) > 20


@pytest.mark.parametrize("text", ["", "fifo", "Round_Robin", "=x", "polymux.policy.pinned:Pinned"])
def test_an_unknown_name_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is unknown; give one of round_robin, least_loaded, pinned"):
        registry.load(text)


def test_an_option_reaches_the_policy() -> None:
    with pytest.raises(InvalidRequest, match="takes no option, given 'cpu:0'"):
        registry.load("round_robin=cpu:0")
    registry.load("pinned=cpu:0")


def test_a_policy_of_an_installed_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, mine="polymux.policy.round_robin:RoundRobin")
    assert isinstance(registry.load("mine"), RoundRobin)
    assert registry.names() == [*registry.POLICIES, "mine"]


def test_an_installed_policy_cannot_replace_a_built_in_one_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, pinned="other.package:Pinned")
    with pytest.raises(
        InvalidRequest, match=r"twice, by polymux.policy.pinned:Pinned and other.package:Pinned"
    ):
        registry.load("pinned")


@pytest.mark.parametrize("value", ["no_such_package:Policy", "polymux.policy.pinned:NoSuchPolicy"])
def test_a_policy_that_cannot_be_loaded_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    install(monkeypatch, broken=value)
    with pytest.raises(
        InvalidRequest, match=f"'broken' cannot be loaded from {value}: .*(No module|no attribute)"
    ):
        registry.load("broken")


POLICY = """
from polymux.policy.round_robin import RoundRobin

class {name}(RoundRobin):
    name = "mine"
"""


def test_a_policy_is_found_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(POLICY.format(name="Mine"))
    policy = registry.load(str(path))
    assert isinstance(policy, RoundRobin)
    assert type(policy).__name__ == "Mine"
    with pytest.raises(InvalidRequest, match="'mine' takes no option, given '3'"):
        registry.load(f"{path}=3")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "No such file"),
        ("import nothing_of_that_name", "nothing_of_that_name"),
        ("1 +", "SyntaxError"),
        ("", "it defines none"),
        ("from polymux.policy.round_robin import RoundRobin", "it defines none"),
        (POLICY.format(name="A") + POLICY.format(name="B"), "it defines A, B"),
    ],
)
def test_a_file_without_one_policy_is_refused_and_the_file_is_named(
    tmp_path: Path, text: str | None, problem: str
) -> None:
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidRequest, match=problem) as caught:
        registry.load(str(path))
    assert str(path) in str(caught.value)


def test_a_broken_package_does_not_break_the_list_of_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, broken="nothing.of.that:Name")
    assert "cannot be loaded" in registry.summaries()["broken"]
