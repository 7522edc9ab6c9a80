"""How the operator says which models are cut, and what becomes of those that cannot be."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from polymux.client import Client
from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OnnxModel
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.onnxgraph.partition.choose import Wish
from polymux.serving.config_check import complete, unused_settings
from polymux.serving.cutting import Cutter, parse_partition
from polymux.serving.errors import ModelLoadError
from polymux.serving.model_config_pb2 import ModelConfig
from polymux.serving.registered_model import RegisteredModel
from tests.unit.onnxgraph.partition.networks import convolutions, node, save

SHAPE = (None, 8, 16, 16)


class FakeClient:
    """Takes note of what is registered."""

    def __init__(self) -> None:
        self.registered: dict[str, OnnxModel] = {}

    def status(self) -> dict[str, Any]:
        return {"devices": [{"apis": ["cpu", "onnx"], "units": 1, "streams": [{"units": None}]}]}

    def register(self, _: None, model: OnnxModel, *, name: str, isolate: bool) -> KernelSpec:
        assert not isolate
        self.registered[name] = model
        return KernelSpec(name)


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def cutters() -> Iterator[list[Cutter]]:
    made: list[Cutter] = []
    yield made
    for cutter in made:
        cutter.close()


def registered(
    partition: str = "", shape: tuple[int | None, ...] = SHAPE, batched: bool = True
) -> RegisteredModel:
    config = ModelConfig(max_batch_size=4 if batched else 0)
    if partition:
        config.parameters["partition"].string_value = partition
    params = [BufferParam(name, (DType.F32,), shape) for name in "xy"]
    spec = KernelSpec("m/1", (params[0],), (params[1],))
    return RegisteredModel(*complete(config, "m", spec), spec)


def cut(
    cutters: list[Cutter], client: FakeClient, path: Path, model: RegisteredModel, *flags: str
) -> RegisteredModel:
    cutters.append(Cutter([parse_partition(flag) for flag in flags]))
    return cutters[-1].cut(cast("Client", client), "m", model, path)


@pytest.mark.parametrize(
    ("text", "model", "wish"),
    [
        ("off", None, None),
        ("auto", None, Wish()),
        ("8", None, Wish(parts=8)),
        ("5ms", None, Wish(longest_ns=5e6)),
        (".5ms", None, Wish(longest_ns=5e5)),
        ("resnet=2.5ms", "resnet", Wish(longest_ns=2.5e6)),
        ("a=b=off", "a=b", None),
    ],
)
def test_a_choice_is_read(text: str, model: str | None, wish: Wish | None) -> None:
    choice = parse_partition(text)
    assert (choice.model, choice.wish) == (model, wish)


@pytest.mark.parametrize("text", ["", "on", "5 ms", "5s", "-1", "0", "65", "0ms", "=auto", "m=", "1e3ms"])
def test_what_is_no_choice_is_refused_with_the_value(text: str) -> None:
    with pytest.raises(InvalidRequest, match="give|write"):
        parse_partition(text)


def test_flags_for_models_that_nobody_serves_are_refused() -> None:
    cutter = Cutter([parse_partition("auto"), parse_partition("x=auto"), parse_partition("m=off")])
    with pytest.raises(InvalidRequest, match="--partition is for x, .*models are m"):
        cutter.check_models(["m"])


def test_nothing_is_cut_unasked(cutters: list[Cutter], client: FakeClient, tmp_path: Path) -> None:
    model = registered()
    assert cut(cutters, client, convolutions(tmp_path / "m.onnx"), model) is model
    assert client.registered == {}


@pytest.mark.parametrize(
    ("config", "flags", "parts"),
    [
        ("3", (), 3),
        ("", ("3",), 3),
        ("3", ("2",), 3),
        ("3", ("m=2",), 2),
        ("off", ("2",), 0),
        ("3", ("m=off",), 0),
        ("", ("other=2",), 0),
    ],
)
def test_a_flag_for_the_model_wins_over_its_configuration_and_that_over_a_flag_for_all(
    cutters: list[Cutter], client: FakeClient, tmp_path: Path, config: str, flags: tuple[str, ...], parts: int
) -> None:
    made = cut(cutters, client, convolutions(tmp_path / "m.onnx"), registered(config), *flags)
    assert [spec.name for spec in made.parts] == [f"m/1/part-{number}" for number in range(1, parts + 1)]
    assert all(model.optimized and Path(model.path).is_file() for model in client.registered.values())


def test_files_go_when_the_front_end_ends_and_a_model_is_cut_once(
    cutters: list[Cutter], client: FakeClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = convolutions(tmp_path / "m.onnx")
    cut(cutters, client, path, registered(), "3")
    files = {model.path for model in client.registered.values()}
    cutters[-1].cut(cast("Client", client), "m", registered(), path)
    assert {model.path for model in client.registered.values()} == files
    assert "model m/1 is cut into 3 parts" in caplog.text
    assert "the same results bit by bit" in caplog.text
    cutters[-1].close()
    assert not any(Path(file).exists() for file in files)


def test_models_that_cannot_be_cut_run_whole_and_the_log_says_why(
    cutters: list[Cutter], client: FakeClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    single = save(tmp_path / "m.onnx", [node("Sigmoid", "x", "y")])
    assert cut(cutters, client, single, registered(), "4").parts == ()
    assert "model m/1 runs whole: it is a single node, Sigmoid" in caplog.text
    free = registered(shape=(None, None), batched=False)
    assert cut(cutters, client, single, free, "4").parts == ()
    assert "input 'x' has extents that are free" in caplog.text


def test_a_parameter_that_cannot_be_read_is_a_load_error(
    cutters: list[Cutter], client: FakeClient, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match="parameter 'partition' in config.pbtxt: 'finely'"):
        cut(cutters, client, tmp_path / "m.onnx", registered("finely"))


@pytest.mark.parametrize("scheduled", [False, True])
def test_the_parameter_has_an_effect_with_and_without_a_policy(scheduled: bool) -> None:
    config: Any = registered("3").config
    assert unused_settings(config, scheduled) == []
    config.parameters["weight"].string_value = "3"
    assert unused_settings(config, scheduled) == ([] if scheduled else ["parameters"])
