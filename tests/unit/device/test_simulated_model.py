from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from polymux.core.errors import ConfigError
from polymux.device.simulated_model import ComputeModel, parse_model, read_model

FULL = """
name = "A described device"
memory_nbytes = "4GiB"
units = 8
streams = 2
[transfer]
bandwidth_bytes_per_s = 12e9
latency_ns = 8000
[compute]
latency_ns = 5000
bandwidth_bytes_per_s = 400e9
operations_per_s = 1e12
[kernels.gemm]
operations = "2 * a[0] * a[1] * b[1]"
[kernels.noop]
latency_ns = 10
"""


def parse(**table: Any) -> Any:
    return parse_model("device.toml", {"memory_nbytes": 1 << 20, **table})


def test_a_full_description_is_read(tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    path.write_text(FULL)
    model = read_model(str(path))
    assert (model.name, model.memory_nbytes, model.units, model.streams) == (
        "A described device",
        4 << 30,
        8,
        2,
    )
    assert model.transfer.duration_ns(12_000) == 8000 + 1000
    assert model.of_kernel("saxpy").duration_ns(400, {}, 1.0) == 5000 + 1
    assert model.of_kernel("noop").duration_ns(400, {}, 1.0) == 10 + 1


def test_only_the_memory_is_required_and_what_is_left_out_costs_nothing() -> None:
    model = parse()
    assert (model.units, model.streams) == (1, 1)
    assert model.transfer.duration_ns(1 << 40) == 0
    assert model.of_kernel("any").duration_ns(1 << 40, {"a": (9,)}, 1.0) == 0


def test_the_slower_of_memory_and_arithmetic_decides() -> None:
    model = parse_model("device.toml", tomllib.loads(FULL)).of_kernel("gemm")
    shapes = {"a": (100, 50), "b": (50, 10)}
    assert model.duration_ns(400, shapes, 1.0) == 5000 + 100
    assert model.duration_ns(400_000, shapes, 1.0) == 5000 + 1000


def test_a_share_computes_at_its_part_of_the_speed_and_launches_as_fast() -> None:
    model = ComputeModel(latency_ns=7, bandwidth_bytes_per_s=1e9)
    assert model.duration_ns(1000, {}, 1.0) == 7 + 1000
    assert model.duration_ns(1000, {}, 0.25) == 7 + 4000


def test_a_kernels_table_takes_what_it_does_not_say_from_the_default() -> None:
    model = parse(compute={"latency_ns": 5, "operations_per_s": 2.0}, kernels={"k": {"operations": "1"}})
    assert model.of_kernel("k").latency_ns == 5
    assert model.of_kernel("k").operations_per_s == 2.0
    assert model.of_kernel("k").bandwidth_bytes_per_s == math.inf


@pytest.mark.parametrize(
    ("table", "key", "remedy"),
    [
        ({"memory": 5}, "memory", "unknown key; known here are name, memory_nbytes, units"),
        (
            {"transfer": {"bandwidth": 5}},
            "transfer.bandwidth",
            "unknown key; known here are bandwidth_bytes_per_s",
        ),
        ({"compute": {"flops": 5}}, "compute.flops", "operations_per_s"),
        ({"kernels": {"gemm": {"speed": 5}}}, "kernels.gemm.speed", "unknown key"),
        ({"kernels": {"gemm": 5}}, "kernels.gemm", r"as a table: \[kernels.gemm\]"),
        ({"transfer": 5}, "transfer", "as a table"),
        ({"memory_nbytes": 0}, "memory_nbytes", "is required"),
        ({"memory_nbytes": True}, "memory_nbytes", "is required"),
        ({"memory_nbytes": "4 gigs"}, "memory_nbytes", "512MiB"),
        ({"name": ""}, "name", "text in quotes"),
        ({"name": 5}, "name", "text in quotes"),
        ({"units": 0}, "units", "from 1 to 65536"),
        ({"units": 1.5}, "units", "whole number"),
        ({"units": True}, "units", "whole number"),
        ({"streams": 65}, "streams", "from 1 to 64"),
        ({"transfer": {"latency_ns": -1}}, "transfer.latency_ns", "from 0"),
        (
            {"transfer": {"bandwidth_bytes_per_s": 0}},
            "transfer.bandwidth_bytes_per_s",
            "positive number per second",
        ),
        ({"compute": {"operations_per_s": math.nan}}, "compute.operations_per_s", "positive number"),
        ({"compute": {"operations_per_s": "fast"}}, "compute.operations_per_s", "positive number"),
        ({"kernels": {"k": {"operations": "open('x')"}}}, "kernels.k.operations", "write an expression"),
        ({"kernels": {"k": {"operations": 5}}}, "kernels.k.operations", "write an expression"),
    ],
)
def test_a_key_that_is_unknown_or_wrong_is_an_error_with_file_key_and_remedy(
    table: dict[str, Any], key: str, remedy: str
) -> None:
    with pytest.raises(ConfigError, match=remedy) as failure:
        parse(**table)
    assert (failure.value.file, failure.value.key) == ("device.toml", key)


def test_a_missing_memory_size_is_an_error() -> None:
    with pytest.raises(ConfigError, match="memory_nbytes = None: is required"):
        parse_model("device.toml", {})


@pytest.mark.parametrize(
    ("content", "remedy"), [(None, "cannot be read"), (b"a = ", "is no TOML"), (b"\xff\xfe", "is no TOML")]
)
def test_a_file_that_cannot_be_read_is_an_error_with_its_path(
    tmp_path: Path, content: bytes | None, remedy: str
) -> None:
    path = tmp_path / "device.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=remedy) as failure:
        read_model(str(path))
    assert failure.value.file == str(path)
