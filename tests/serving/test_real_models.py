"""Published models from installed packages on real data, against onnxruntime called directly."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.http as triton
from PIL import Image

from tests.serving import repository
from tests.serving.front_end import serving

MODELS = {
    "detect_text": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx"),
    "read_text": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx"),
    "file_type": ("magika", "models/standard_v3_3/model.onnx"),
    "voice": ("silero_vad", "data/silero_vad.onnx"),
}
DATATYPES = {"float32": "FP32", "int32": "INT32", "int64": "INT64"}
Arrays = dict[str, np.ndarray[Any, Any]]


@cache
def session(model: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        repository.package_file(*MODELS[model]), options, providers=["CPUExecutionProvider"]
    )


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root: Path = tmp_path_factory.mktemp("models")
    for name, (package, path) in MODELS.items():
        repository.add(root, name, repository.package_file(package, path))
    with serving(root) as started:
        started.wait_until_loaded()
        assert started.get("/v2/health/ready")[0] == 200
        yield started.url


def ask(url: str, model: str, inputs: Arrays, binary: bool = True) -> Arrays:
    tensors = []
    for name, value in inputs.items():
        tensors.append(triton.InferInput(name, list(value.shape), DATATYPES[value.dtype.name]))
        tensors[-1].set_data_from_numpy(value, binary_data=binary)
    with triton.InferenceServerClient(url, network_timeout=120) as client:  # a client belongs to one thread
        result = client.infer(model, tensors)
    return {output["name"]: result.as_numpy(output["name"]) for output in result.get_response()["outputs"]}


def check(url: str, model: str, inputs: Arrays, binary: bool = True) -> Arrays:
    """Ask the server and onnxruntime, compare, and return the server's answer."""
    answer = ask(url, model, inputs, binary)
    direct = session(model)
    names = [output.name for output in direct.get_outputs()]
    assert list(answer) == names
    for name, expected in zip(names, direct.run(None, inputs), strict=True):
        np.testing.assert_allclose(answer[name], expected, rtol=1e-3, atol=1e-4)
    return answer


def photo(name: str, height: int, width: int) -> np.ndarray[Any, Any]:
    """Return a picture as the models take it: [1, 3, height, width] in -1 to 1."""
    with Image.open(repository.package_file("skimage", f"data/{name}")) as image:
        pixels = np.asarray(image.convert("RGB").resize((width, height)), np.float32)
    return (pixels / 127.5 - 1).transpose(2, 0, 1)[None]


@pytest.mark.parametrize(("height", "width"), [(192, 320), (320, 192), (64, 64)])
def test_text_detection_on_pages_of_several_sizes(url: str, height: int, width: int) -> None:
    answer = check(url, "detect_text", {"x": photo("page.png", height, width)})
    assert next(iter(answer.values())).shape == (1, 1, height, width)


def test_text_recognition_of_lines_of_any_length_at_once(url: str) -> None:
    widths = [48, 320, 100, 640, 320, 96, 48, 200]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda width: check(url, "read_text", {"x": photo("text.png", 48, width)}), widths))


def test_file_types_of_a_batch_in_json(url: str) -> None:
    files = [Path(__file__), repository.package_file("skimage", "data/page.png")]
    tokens = np.full((2, 2048), 256, np.int32)
    for row, file in zip(tokens, files, strict=True):
        content = np.frombuffer(file.read_bytes(), np.uint8)
        row[:1024] = content[:1024]
        row[1024:] = content[-1024:]
    answer = check(url, "file_type", {"bytes": tokens}, binary=False)
    scores = next(iter(answer.values()))
    assert scores.shape[0] == 2
    assert scores[0].argmax() != scores[1].argmax()


def test_a_voice_detector_with_a_scalar_and_state_that_the_client_carries(url: str) -> None:
    rng = np.random.default_rng(0)
    state = np.zeros((2, 1, 128), np.float32)
    for step in range(12):
        loudness = 0.5 * np.sin(2 * np.pi * 220 * np.arange(576) / 16000) * (step % 3)
        frame = (loudness + 0.01 * rng.standard_normal(576)).astype(np.float32)[None]
        inputs = {"input": frame, "state": state, "sr": np.array(16000, np.int64)}
        answer = check(url, "voice", inputs, binary=bool(step % 2))
        assert answer["output"].shape == (1, 1)
        state = answer["stateN"]
    assert np.abs(state).max() > 0


def test_models_run_side_by_side(url: str) -> None:
    page = {"x": photo("page.png", 192, 320)}
    frame = {
        "input": np.zeros((1, 576), np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16000, np.int64),
    }
    jobs = [("detect_text", page), ("voice", frame), ("voice", frame)] * 4
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda job: check(url, *job), jobs))
