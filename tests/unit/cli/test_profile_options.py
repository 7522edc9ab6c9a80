"""How `polymux profile` reads what is to be measured, and where profiles are."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from polymux.cli.command_line import main
from polymux.cli.profile_models import find_models, shape_option, values_option
from polymux.cli.profile_store import default_store_path
from polymux.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("x=Nx3x224x224", ("x", ("N", 3, 224, 224))),
        ("a=b=2xNx128", ("a=b", (2, "N", 128))),
        ("sr=scalar", ("sr", ())),
        ("x=N", ("x", ("N",))),
    ],
)
def test_shapes_are_read(text: str, read: object) -> None:
    assert shape_option(text) == read


@pytest.mark.parametrize("text", ["x", "=Nx3", "x=", "x=Nx0", "x=NxN", "x=Nx-1", "x=Nx3.5", "x=N,3"])
def test_shapes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="NAME=Nx3x224x224"):
        shape_option(text)


def test_values_are_read() -> None:
    assert values_option("x=0..255") == ("x", (0, 255))
    assert values_option("x=-1.5..1") == ("x", (-1.5, 1))
    assert values_option("sr=16000") == ("sr", (16000, 16000))
    for text in ("x", "x=", "x=5..1", "x=a..b", "=1", "x=nan"):
        with pytest.raises(argparse.ArgumentTypeError, match=r"NAME=0\.\.255"):
            values_option(text)


def test_models_are_named_by_their_files_or_their_folders_in_a_repository(tmp_path: Path) -> None:
    for name in (
        "net.onnx",
        "nets/a.onnx",
        "nets/b.onnx",
        "nets/readme.txt",
        "repo/ocr/3/model.onnx",
        "repo/ocr/10/model.onnx",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def names(*given: str) -> list[tuple[str, str]]:
        found, problems = find_models([str(tmp_path / word) for word in given], {}, {}, None, tmp_path)
        assert not problems
        return [(its.name, str(its.path.relative_to(tmp_path))) for its in found]

    assert names("net.onnx", "nets") == [("net", "net.onnx"), ("a", "nets/a.onnx"), ("b", "nets/b.onnx")]
    assert names("repo") == [("ocr", "repo/ocr/10/model.onnx")]
    assert names("repo/ocr/3/model.onnx") == [("ocr", "repo/ocr/3/model.onnx")]
    (renamed,), _ = find_models([str(tmp_path / "net.onnx")], {"x": ("N", 3)}, {}, "other", tmp_path)
    assert (renamed.name, renamed.shapes) == ("other", {"x": ("N", 3)})
    with pytest.raises(ConfigError, match="one model at a time"):
        find_models([str(tmp_path / "nets")], {}, {}, "other", tmp_path)
    two, _ = find_models(
        [str(tmp_path / "nets")], {"a:x:0": ("N", 3), "b:x:0": ("N", 4)}, {"b:y": (1, 2)}, None, tmp_path
    )
    assert [(its.shapes, its.values) for its in two] == [
        ({"x:0": ("N", 3)}, {}),
        ({"x:0": ("N", 4)}, {"y": (1, 2)}),
    ]
    with pytest.raises(ConfigError, match="say which one has the input, as MODEL:INPUT; the models are a, b"):
        find_models([str(tmp_path / "nets")], {"x:0": ("N", 3)}, {}, None, tmp_path)


def test_the_store_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLYMUX_PROFILES", str(tmp_path / "p.db"))
    assert default_store_path() == tmp_path / "p.db"
    monkeypatch.delenv("POLYMUX_PROFILES")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_store_path() == tmp_path / "polymux" / "profiles.db"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert default_store_path() == Path.home() / ".local" / "share" / "polymux" / "profiles.db"


@pytest.mark.parametrize("command", ["profile", "profile show", "profile forget"])
def test_commands_of_two_words_have_a_help_of_their_own(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert ended.value.code == 0
    assert f"usage: polymux {command} [-h]" in capsys.readouterr().out
