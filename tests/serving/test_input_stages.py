"""`polymux serve` with models behind input stages: files over HTTP, shared stages, batches under a policy."""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.http as http
from onnx import TensorProto, helper
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from tests.serving import repository
from tests.serving.front_end import FrontEnd, serving
from tests.unit.inputs.stages import encoded


def parameters(**values: str) -> str:
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in values.items()
    )


def means() -> onnx.ModelProto:
    """Make a model of images: `y` is the mean of each colour."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 16, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])
    node = helper.make_node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=0)
    return repository.graph([node], [x], [y])


def total() -> onnx.ModelProto:
    """Make a model of tokens: `y` is their sum."""
    tokens = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, ["batch"])
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    node = helper.make_node("ReduceSum", ["input_ids", "axes"], ["y"], keepdims=0)
    return repository.graph([node], [tokens], [y], [axes])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("models")
    batched = "max_batch_size: 8\n"
    repository.add(root, "one", means(), batched + parameters(input_stage="image", share_input="true"))
    repository.add(root, "two", means(), batched + parameters(input_stage="image", share_input="true"))
    repository.add(root, "own", means(), parameters(input_stage="stages.py:level,by=0.5"))
    repository.add(root, "tokens", total(), parameters(input_stage="tokenise,file=words.json"))
    repository.add(root, "plain", means())
    repository.add(root, "wrong", means(), parameters(input_stage="image,size=224"))
    (root / "own" / "stages.py").write_text(
        "from polymux.core.dtype import DType\n"
        "from polymux.kernel import BufferParam, kernel\n\n\n"
        "@kernel('level', inputs=[BufferParam('data', (DType.U8,), (None,))],\n"
        "        outputs=[BufferParam('x', (DType.F32,), (3, 16, 16))], scalars={'by': 'f4'})\n"
        "def level(data, x, by):\n"
        "    x[:] = by * data[0]\n"
    )
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "one": 1, "two": 2, "forty": 40}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(root / "tokens" / "words.json"))
    return root


@pytest.fixture(scope="module", params=["in order", "spacetime"])
def front(request: pytest.FixtureRequest, models: Path) -> Iterator[FrontEnd]:
    options = () if request.param == "in order" else ("--policy", request.param, "--slo-ms", "30000")
    with serving(models, "--stage-threads", "2", *options) as made:
        made.wait_until_loaded()
        yield made


def picture(level: int) -> bytes:
    """Return a file that no other test has: results are shared with all processes of the user."""
    return encoded(np.full((20, 30, 3), level, np.uint8), "JPEG", quality=95, comment=os.urandom(16))


def send(front: FrontEnd, model: str, body: bytes) -> tuple[int, Any]:
    """Send a file as it is; return status, and the values of the first output or the error."""
    request = urllib.request.Request(
        f"http://{front.url}/v2/models/{model}/infer", body, {"Inference-Header-Content-Length": "0"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            content, header = answer.read(), int(answer.headers["inference-header-content-length"])
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]
    (output,) = json.loads(content[:header])["outputs"]
    kind = {"FP32": np.float32, "INT64": np.int64}[output["datatype"]]
    return 200, np.frombuffer(content[header:], kind).tolist()


def metric(front: FrontEnd, name: str, stage: str) -> float:
    with urllib.request.urlopen(f"http://{front.url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found = re.search(rf'^polymux_serving_stage_{name}_total\{{stage="{stage}"\}} (\S+)$', text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_two_models_get_the_same_files_and_decode_each_once(front: FrontEnd) -> None:
    before = metric(front, "runs", "image"), metric(front, "shared", "image")
    levels = range(0, 240, 20)
    with ThreadPoolExecutor(8) as clients:
        files = [(level, picture(level)) for level in levels]
        asked = [(model, *file) for file in files for model in ("one", "two")]
        answers = list(clients.map(lambda what: send(front, what[0], what[2]), asked))
    for (_, level, _), (status, values) in zip(asked, answers, strict=True):
        assert status == 200
        assert values == pytest.approx([level / 255] * 3, abs=0.02)
    assert metric(front, "runs", "image") - before[0] == len(levels)
    assert metric(front, "shared", "image") - before[1] == len(levels)


def test_bad_files_among_good_ones_fail_alone(front: FrontEnd) -> None:
    bodies = [picture(200), b"", b"not a picture", picture(200)[:200], picture(60)]
    with ThreadPoolExecutor(5) as clients:
        answers = list(clients.map(lambda body: send(front, "one", body), bodies))
    assert [status for status, _ in answers] == [200, 400, 400, 400, 200]
    assert all("JPEG, PNG, WEBP" in words for status, words in answers if status == 400)


def test_a_kernel_beside_the_model_is_its_stage(front: FrontEnd) -> None:
    assert send(front, "own", bytes([8, 9])) == (200, [4.0, 4.0, 4.0])
    status, words = send(front, "own", b"")
    assert (status, "IndexError" in words) == (500, True)


def test_a_text_is_tokenised(front: FrontEnd) -> None:
    assert send(front, "tokens", b"forty two") == (200, [42])
    assert send(front, "tokens", b"one two two") == (200, [5])
    assert send(front, "tokens", b"\xff")[0] == 400


def test_a_client_of_triton_sends_a_file_as_bytes(front: FrontEnd) -> None:
    content = np.frombuffer(picture(100), np.uint8)
    with http.InferenceServerClient(front.url) as client:
        assert client.get_model_metadata("one")["inputs"] == [
            {"name": "image", "datatype": "UINT8", "shape": [-1]}
        ]
        tensor = http.InferInput("image", list(content.shape), "UINT8")
        tensor.set_data_from_numpy(content)
        result = client.infer("one", [tensor]).as_numpy("y")
    assert result.reshape(-1).tolist() == pytest.approx([100 / 255] * 3, abs=0.02)


def test_a_stage_that_does_not_fit_stops_its_model_alone(front: FrontEnd) -> None:
    index = front.index()
    assert "size=224 does not fit" in index["wrong"]["reason"]
    assert {name for name, entry in index.items() if entry["state"] == "READY"} == {
        "one", "own", "plain", "tokens", "two",
    }  # fmt: skip
