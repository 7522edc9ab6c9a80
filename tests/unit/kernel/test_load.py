from __future__ import annotations

import sys
from pathlib import Path

import pytest

from polymux.core.errors import ConfigError
from polymux.kernel.builtin import NAMES
from polymux.kernel.load import load_kernels

KERNEL = """
from polymux.kernel import kernel

@kernel("{name}", inputs="x", outputs="y")
def {name}(x, y):
    y[...] = x
"""


def test_the_built_in_kernels_have_a_cpu_and_an_opencl_version_unless_of_a_lower_precision() -> None:
    table = load_kernels()
    assert set(NAMES) <= set(table.names())
    for name in NAMES:
        precision = name.rpartition("_")[2]
        lower = {"bf16": {"cpu", "cuda"}, "tf32": {"cuda"}, "fp16": {"cuda"}}
        assert set(table.apis(name)) - {"cuda"} == lower.get(precision, {"cpu", "opencl"}) - {"cuda"}
        assert table.spec(name).name == name
        assert table.spec(name).doc
        assert set(table.origins(name).values()) == {"built in"}


def test_kernels_of_files_join_the_built_in_ones(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(KERNEL.format(name="mine"))
    (tmp_path / "b.toml").write_text(
        '[[kernel]]\nname = "mine"\ninputs = ["x"]\noutputs = ["y"]\nopencl = { source = "b.cl", global_size = [1] }\n'
    )
    (tmp_path / "b.cl").write_text("__kernel void mine() {}")
    table = load_kernels([tmp_path / "a.py", str(tmp_path / "b.toml")])
    assert table.apis("mine") == ("cpu", "opencl")
    assert table.origins("mine") == {"cpu": str(tmp_path / "a.py"), "opencl": str(tmp_path / "b.toml")}


def test_a_name_that_is_taken_is_refused_with_both_places(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(KERNEL.format(name="mine"))
    with pytest.raises(ConfigError, match=r"b\.py: name = 'mine': .*a\.py has registered one already"):
        load_kernels([tmp_path / "a.py", tmp_path / "b.py"])
    (tmp_path / "c.py").write_text(KERNEL.format(name="gemm"))
    with pytest.raises(ConfigError, match=r"c\.py: name = 'gemm': .*built in has registered that name with"):
        load_kernels([tmp_path / "c.py"])


@pytest.mark.parametrize(
    ("name", "message"),
    [("missing.py", "there is no such file"), ("kernels.json", r"a kernels file ends in \.py or \.toml")],
)
def test_files_that_are_none_are_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "kernels.json").write_text("{}")
    with pytest.raises(ConfigError, match=message) as caught:
        load_kernels([tmp_path / name])
    assert caught.value.file == str(tmp_path / name)


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, target: str, module: str, text: str) -> None:
    """Put a package with an entry point into the path."""
    (folder / f"{module}.py").write_text(text)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[polymux.kernels]\nplugin = {target}\n")
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize("target", ["plugin_module", "plugin_module:one", "plugin_module:ALL"])
def test_entry_points_bring_modules_kernels_or_lists_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    text = KERNEL.format(name="one") + "\nALL = [one]\n"
    installed(tmp_path, monkeypatch, target, "plugin_module", text)
    try:
        table = load_kernels()
    finally:
        sys.modules.pop("plugin_module", None)
    assert table.apis("one") == ("cpu",)
    assert target in table.origins("one")["cpu"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("broken_plugin:missing", r"value = 'broken_plugin:missing': it cannot be loaded \(AttributeError"),
        ("broken_plugin:number", r"value = 'broken_plugin:number': it holds no kernel"),
        ("no_such_plugin", r"uninstall broken_plugin"),
    ],
)
def test_an_entry_point_that_does_not_load_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, message: str
) -> None:
    installed(tmp_path, monkeypatch, target, "broken_plugin", "number = 3\n")
    try:
        with pytest.raises(ConfigError, match=message) as caught:
            load_kernels()
    finally:
        sys.modules.pop("broken_plugin", None)
    assert caught.value.file == "entry point plugin of polymux.kernels"
