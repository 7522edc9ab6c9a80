"""Models behind input stages, over the HTTP application; the model computes in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from polymux.client import Client
from polymux.core.dtype import DType
from polymux.inputs import StagePool
from polymux.metrics.exposition import Metrics
from polymux.serving.config_check import unused_settings
from polymux.serving.errors import ModelLoadError
from polymux.serving.http_app import HttpApp
from polymux.serving.limits import Limits
from polymux.serving.model_config_pb2 import ModelConfig
from polymux.serving.models import LoadedModel, Models, ModelState, ModelVersion
from polymux.serving.signature import ModelSignature
from polymux.serving.stages.loader import StagedLoader
from polymux.serving.stages.metrics import StageMetrics
from polymux.serving.stages.settings import StageOptions, stage_settings
from tests.unit.inputs.stages import encoded
from tests.unit.serving.asgi import Answer, call
from tests.unit.serving.fake_model import FakeRunner, loaded, signature, tensor

IMAGES = signature([tensor("x", DType.F32, (None, 3, 4, 4))], [tensor("y", DType.F32, (None,))], 8)
MIXED = signature(
    [tensor("scale", DType.F32, (None, 1)), tensor("x", DType.F32, (None, 3, 4, 4))],
    [tensor("y", DType.F32, (None,))],
    8,
)
WHITE, BLACK = (encoded(np.full((4, 4, 3), level, np.uint8)) for level in (255, 0))
OWN = """
from polymux.core.dtype import DType
from polymux.kernel import BufferParam, kernel

@kernel("own", inputs=[BufferParam("data", (DType.U8,), (None,))], outputs="x")
def own(data, x):
    x[:] = 1 / (len(data) - 1)
"""
RAW = [("inference-header-content-length", "0")]


def config(**parameters: str) -> ModelConfig:
    text = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in parameters.items()
    )
    return text_format.Parse(text, ModelConfig())


class FakeLoader:
    scheduled = False

    def __init__(self, model: ModelSignature, runner: FakeRunner) -> None:
        self._model = model
        self._runner = runner

    async def load(self, *_: Any) -> LoadedModel:
        return loaded(self._runner, self._model)

    def let_go(self) -> None:
        pass


class Front:
    """Models `a` and `b`, both behind the stage that a configuration names."""

    def __init__(
        self,
        pool: StagePool,
        model: ModelSignature,
        settings: ModelConfig,
        folder: Path,
        *,
        share: bool = False,
    ) -> None:
        self.runner = FakeRunner(lambda *arrays: [np.prod([array.mean() for array in arrays]).reshape(1)])
        loader = StagedLoader(FakeLoader(model, self.runner), pool, StageOptions(share=share))
        models = Models()
        for name in "ab":
            path = folder / name / "1" / "model.onnx"
            self.loaded = asyncio.run(loader.load(Client.__new__(Client), name, 1, path, settings))
            models.put(ModelVersion(name, 1, ModelState.READY, "", self.loaded))
        metrics = Metrics(dict, collectors=[StageMetrics(pool)])
        self.app = HttpApp(models, Limits(), metrics)

    def call(self, path: str, body: bytes | None = None, headers: Any = ()) -> Answer:
        method = "GET" if body is None else "POST"
        answer = asyncio.run(call(self.app, method, path, [] if body is None else [body], headers))
        assert answer is not None
        return answer

    def send(self, image: bytes, name: str = "a") -> Answer:
        return self.call(f"/v2/models/{name}/infer", image, [*RAW, ("content-length", str(len(image)))])


@pytest.fixture
def pool() -> Iterator[StagePool]:
    with StagePool(1) as made:
        yield made


def y(answer: Answer) -> float:
    assert answer.status == 200, answer.body
    return float(np.frombuffer(answer.body[-4:], np.float32)[0])


def test_the_body_of_a_request_is_the_file(pool: StagePool, tmp_path: Path) -> None:
    front = Front(pool, IMAGES, config(input_stage="image"), tmp_path)
    assert y(front.send(WHITE)) == pytest.approx(1)
    assert y(front.send(BLACK)) == 0
    assert not front.runner.live


def test_the_metadata_has_the_stages_input_in_place_of_the_models(pool: StagePool, tmp_path: Path) -> None:
    front = Front(pool, MIXED, config(input_stage="image"), tmp_path)
    found = json.loads(front.call("/v2/models/a").body)
    assert found["inputs"] == [
        {"name": "image", "datatype": "UINT8", "shape": [-1]},
        {"name": "scale", "datatype": "FP32", "shape": [1, 1]},
    ]


def test_inputs_that_the_stage_does_not_make_come_with_the_request(pool: StagePool, tmp_path: Path) -> None:
    front = Front(pool, MIXED, config(input_stage="image"), tmp_path)
    image = {"name": "image", "datatype": "UINT8", "shape": [len(WHITE)], "data": list(WHITE)}
    scale = {"name": "scale", "datatype": "FP32", "shape": [1, 1], "data": [7]}
    answer = front.call("/v2/models/a/infer", json.dumps({"inputs": [scale, image]}).encode())
    assert json.loads(answer.body)["outputs"][0]["data"] == [pytest.approx(7)]
    scale["shape"], scale["data"] = [2, 1], [7, 7]
    answer = front.call("/v2/models/a/infer", json.dumps({"inputs": [scale, image]}).encode())
    assert answer.status == 400
    assert not front.runner.live


@pytest.mark.parametrize("image", [b"no image", WHITE[:30]])
def test_a_bad_file_is_the_requests_fault_and_costs_nothing(
    pool: StagePool, tmp_path: Path, image: bytes
) -> None:
    front = Front(pool, IMAGES, config(input_stage="image"), tmp_path)
    answer = front.send(image)
    assert answer.status == 400
    assert "no image that can be decoded" in json.loads(answer.body)["error"]
    assert not front.runner.live
    assert y(front.send(WHITE)) == pytest.approx(1)


@pytest.mark.parametrize(
    ("flag", "parameter", "runs"), [(False, "true", 1), (True, "", 1), (True, "false", 2)]
)
def test_two_models_share_a_run_where_they_are_told_to(
    pool: StagePool, tmp_path: Path, flag: bool, parameter: str, runs: int
) -> None:
    settings = config(input_stage="image", **({"share_input": parameter} if parameter else {}))
    front = Front(pool, IMAGES, settings, tmp_path, share=flag)
    assert [y(front.send(WHITE, name)) for name in "ab"] == [pytest.approx(1)] * 2
    text = front.call("/metrics").body.decode()
    assert f'polymux_serving_stage_runs_total{{stage="image"}} {runs}.0' in text
    assert f'polymux_serving_stage_shared_total{{stage="image"}} {2 - runs}.0' in text
    assert "polymux_serving_stage_waiting 0.0" in text


def test_a_stage_that_fails_is_an_error_of_the_server(pool: StagePool, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.py").write_text(OWN)
    front = Front(pool, IMAGES, config(input_stage="own.py:own"), tmp_path)
    answer = front.send(b"a")
    assert answer.status == 500
    assert "ZeroDivisionError" in json.loads(answer.body)["error"]
    assert y(front.send(b"abc")) == pytest.approx(0.5)
    assert not front.runner.live


def test_when_too_many_wait_a_request_is_refused_before_its_body_is_read(tmp_path: Path) -> None:
    with StagePool(1, max_waiting=0) as pool:
        front = Front(pool, IMAGES, config(input_stage="image"), tmp_path)
        answer = front.send(WHITE)
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    assert front.runner.allocated_nbytes == 0


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"input_stage": ""}, "'input_stage' in config.pbtxt is empty"),
        ({"share_input": "true"}, "no input stage to share"),
        ({"input_stage": "image", "share_input": "yes"}, "'share_input' in config.pbtxt is 'yes'"),
    ],
)
def test_a_configuration_that_cannot_be_is_a_load_error(parameters: dict[str, str], words: str) -> None:
    with pytest.raises(ModelLoadError, match=words):
        stage_settings(config(**parameters), StageOptions())


@pytest.mark.parametrize(
    ("stage", "model", "words"),
    [
        ("sound", IMAGES, "no stage is called 'sound'"),
        ("image,size=224", IMAGES, "size=224 does not fit"),
        ("own.py:own", IMAGES, "there is no file"),
        (
            "image",
            signature(
                [tensor("x", DType.F32, (None, 3, 4, 4)), tensor("image", DType.F32, (None, 1))],
                [tensor("y", DType.F32, (None,))],
            ),
            "both the stage and the model have an input 'image'",
        ),
    ],
)
def test_a_stage_that_does_not_fit_the_model_is_a_load_error(
    pool: StagePool, tmp_path: Path, stage: str, model: ModelSignature, words: str
) -> None:
    with pytest.raises(ModelLoadError, match=words):
        Front(pool, model, config(input_stage=stage), tmp_path)


def test_the_parameters_of_stages_always_have_an_effect() -> None:
    assert unused_settings(config(input_stage="image", share_input="true")) == []
    assert unused_settings(config(input_stage="image", slo_ms="5")) == ["parameters"]
    assert unused_settings(config(input_stage="image", slo_ms="5"), scheduled=True) == []
