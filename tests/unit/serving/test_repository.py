from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from polymux.serving.config_file import read_config, to_json
from polymux.serving.errors import ModelLoadError
from polymux.serving.repository import ModelFiles, scan

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = Path("polymux/serving/model_config.proto")


def model(root: Path, name: str, *versions: str, config: str | None = None) -> None:
    for version in versions:
        (root / name / version).mkdir(parents=True)
    (root / name).mkdir(parents=True, exist_ok=True)
    if config is not None:
        (root / name / "config.pbtxt").write_text(config)


def only(root: Path) -> ModelFiles:
    (found,) = scan(root)
    return found


def reason(root: Path) -> str:
    error = only(root).error
    assert error is not None
    return error


def test_models_are_found_with_their_latest_version_and_other_things_are_not(tmp_path: Path) -> None:
    model(tmp_path, "ocr", "1", "2", "10", "03", "x")
    model(tmp_path, "vad", "1")
    model(tmp_path, ".cache", "1")
    (tmp_path / "README.md").write_text("hello")
    assert [(files.name, list(files.versions)) for files in scan(tmp_path)] == [("ocr", [10]), ("vad", [1])]
    assert scan(tmp_path)[1].versions[1] == tmp_path / "vad" / "1" / "model.onnx"


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("", [3]),
        ("version_policy: { latest: {} }", [3]),
        ("version_policy: { latest: { num_versions: 2 } }", [2, 3]),
        ("version_policy: { latest: { num_versions: 9 } }", [1, 2, 3]),
        ("version_policy: { all: {} }", [1, 2, 3]),
        ("version_policy: { specific: { versions: [3, 1] } }", [1, 3]),
    ],
)
def test_the_version_policy_chooses_the_versions(tmp_path: Path, policy: str, expected: list[int]) -> None:
    model(tmp_path, "m", "1", "2", "3", config=policy)
    assert list(only(tmp_path).versions) == expected


def test_another_file_name_can_be_configured(tmp_path: Path) -> None:
    model(tmp_path, "m", "1", config='default_model_filename: "net.onnx"')
    assert only(tmp_path).versions[1].name == "net.onnx"


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ("max_batch_size: 'x'", "config.pbtxt:1"),
        ("max_batch_size: 8\ninput [", "config.pbtxt:2"),
        ("max_batch_sise: 8", "max_batch_sise.*spelling"),
        ("ensemble_scheduling { step [] }", "ensemble_scheduling.*does not support"),
        ("sequence_batching { }", "sequence_batching.*does not support"),
        ('name: "other"', "'other'.*'m'"),
        ('platform: "tensorrt_plan"', "tensorrt_plan"),
        ('backend: "python"', "python"),
        ('default_model_filename: "../../etc/passwd"', "etc/passwd"),
        ("model_transaction_policy { decoupled: true }", "decoupled"),
        ("version_policy: { specific: { versions: [1, 7] } }", "7"),
        ("version_policy: { specific: { } }", "no version"),
    ],
)
def test_a_configuration_that_cannot_be_followed_is_the_models_error(
    tmp_path: Path, config: str, fault: str
) -> None:
    model(tmp_path, "m", "1", config=config)
    assert re.search(fault, reason(tmp_path))
    assert only(tmp_path).versions == {}


def test_a_bad_model_does_not_hide_the_others(tmp_path: Path) -> None:
    model(tmp_path, "bad", "1", config="{")
    model(tmp_path, "empty")
    model(tmp_path, "good", "1")
    assert [files.error is None for files in scan(tmp_path)] == [False, False, True]


def test_a_model_without_versions_says_where_its_file_belongs(tmp_path: Path) -> None:
    model(tmp_path, "m")
    assert "m/1/model.onnx" in reason(tmp_path)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"x" * (2 << 20)])
def test_a_configuration_that_is_no_text_or_far_too_large_is_the_models_error(
    tmp_path: Path, content: bytes
) -> None:
    model(tmp_path, "m", "1")
    (tmp_path / "m" / "config.pbtxt").write_bytes(content)
    assert "config.pbtxt" in reason(tmp_path)


def test_a_repository_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="nothing"):
        scan(tmp_path / "nothing")


def test_a_configuration_is_shown_with_defaults_and_plain_numbers(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_text(
        """
        name: "m"  max_batch_size: 8
        input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, -1 ] } ]
        instance_group [ { count: 2 kind: KIND_CPU } ]
        dynamic_batching { max_queue_delay_microseconds: 100 }
        parameters { key: "k" value: { string_value: "v" } }
        """
    )
    shown = to_json(read_config(path))
    assert shown["max_batch_size"] == 8
    assert shown["input"][0]["dims"] == [3, -1]
    assert shown["input"][0]["data_type"] == "TYPE_FP32"
    assert shown["output"] == []
    assert shown["backend"] == ""
    assert shown["instance_group"][0]["kind"] == "KIND_CPU"
    assert shown["dynamic_batching"]["max_queue_delay_microseconds"] == 100
    assert shown["parameters"] == {"k": {"string_value": "v"}}
    assert "version_policy" not in shown


def test_a_missing_configuration_file_is_a_load_error(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="cannot be read"):
        read_config(tmp_path / "config.pbtxt")


def test_the_generated_schema_matches_its_source(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-I.",
        f"--python_out={tmp_path}",
        f"--pyi_out={tmp_path}",
    ]
    subprocess.run([*command, str(SCHEMA)], cwd=ROOT / "src", check=True)
    for suffix in ("_pb2.py", "_pb2.pyi"):
        name = SCHEMA.with_name(SCHEMA.stem + suffix)
        assert (tmp_path / name).read_text() == (ROOT / "src" / name).read_text()
