"""Real models to measure and to serve, from files of installed packages; nothing is downloaded.

Some come with their trained weights. Of the classical networks for images the package onnx has the graphs alone: these
get random weights here, of a size that keeps the activations finite. They take as long as trained ones; their answers
mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.errors import ConfigError
from polymux.onnxgraph.dynamic_batch import with_dynamic_batch
from polymux.onnxgraph.file import load_model, save_model
from polymux.onnxgraph.inputs import ItemInput, item_inputs
from polymux.onnxgraph.packages import import_onnx

PREFIX = "sample:"


@dataclass(frozen=True, slots=True)
class Sample:
    """A model in a package.

    Parameters
    ----------
    name : str
    package, path : str
        The package that carries it, and its file there.
    does : str
        What it is for.
    trained : bool
        Whether its weights are the published ones; otherwise random.
    shapes : mapping of str to tuple of (int or "N")
        Of its inputs, where its file leaves them free.
    values : mapping of str to (float, float)
        Lowest and highest of its inputs, where not 0 and 1.
    """

    name: str
    package: str
    path: str
    does: str
    trained: bool = True
    shapes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    values: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """Place of the package's file.

        Raises
        ------
        ConfigError
            Without the package, or when its version has no such file.
        """
        try:
            installed = distribution(self.package)
        except PackageNotFoundError:
            remedy = f"it is a file of that package: pip install --no-deps {self.package}"
            raise ConfigError(f"sample {self.name}", "package", self.package, remedy) from None
        place = Path(str(installed.locate_file(self.path)))
        if not place.is_file():
            remedy = (
                f"version {installed.version} of {self.package} has no such file; install the locked version"
            )
            raise ConfigError(f"sample {self.name}", "file", self.path, remedy)
        return place

    def inputs(self, model: Any) -> tuple[ItemInput, ...]:
        """Say what one item looks like."""
        return item_inputs(f"sample {self.name}", model, self.shapes, self.values)


def _network(name: str, does: str) -> Sample:
    return Sample(name, "onnx", f"onnx/backend/test/data/light/light_{name}.onnx", does, trained=False)


SAMPLES = {
    sample.name: sample
    for sample in (
        _network("squeezenet", "classifies images (SqueezeNet 1.0), light"),
        _network("shufflenet", "classifies images (ShuffleNet), light"),
        _network("inception_v1", "classifies images (GoogLeNet)"),
        _network("resnet50", "classifies images (ResNet-50), heavy"),
        _network("densenet121", "classifies images (DenseNet-121), heavy"),
        _network("bvlc_alexnet", "classifies images (AlexNet), most of its weights in two layers"),
        _network("vgg19", "classifies images (VGG-19), very heavy"),
        Sample(
            "read_text",
            "rapidocr-onnxruntime",
            "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
            "reads a line of text (PP-OCRv4)",
            shapes={"x": ("N", 3, 48, 320)},
        ),
        Sample(
            "detect_text",
            "rapidocr-onnxruntime",
            "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
            "finds lines of text in a picture (PP-OCRv4)",
            shapes={"x": ("N", 3, 320, 320)},
        ),
        Sample(
            "turn_text",
            "rapidocr-onnxruntime",
            "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
            "tells whether a line of text is upside down (PP-OCR 2), very light",
            shapes={"x": ("N", 3, 48, 192)},
        ),
        Sample(
            "name_file_type",
            "magika",
            "magika/models/standard_v3_3/model.onnx",
            "names a file's type from its bytes (Magika)",
            values={"bytes": (0, 256)},
        ),
        Sample(
            "hear_speech",
            "silero-vad",
            "silero_vad/data/silero_vad_16k_op15.onnx",
            "tells speech from silence (Silero VAD), very light",
            shapes={"input": ("N", 576), "state": (2, "N", 128)},
            values={"sr": (16000, 16000)},
        ),
    )
}
"""By name."""


def find_sample(name: str) -> Sample:
    """Return the sample of a name.

    Raises
    ------
    ConfigError
        If there is none.
    """
    found = SAMPLES.get(name)
    if found is None:
        raise ConfigError(
            "samples", "name", name, f"there is none of that name; there are {', '.join(SAMPLES)}"
        )
    return found


def write_sample(name: str, path: Path) -> Path:
    """Write a sample, with its weights and a free batch, to a file; nothing happens when it is there already.

    Parameters
    ----------
    name : str
    path : pathlib.Path
        The file; its folder is made.

    Returns
    -------
    pathlib.Path
        The same.

    Raises
    ------
    ConfigError
        If there is no such sample, its package is missing, or the file cannot be written.
    """
    sample = find_sample(name)
    if path.exists():
        return path
    model = load_model(sample.file)
    if not sample.trained:
        give_weights(model)
    inputs = sample.inputs(model)
    if any(item.is_fixed for item in inputs):
        model = with_dynamic_batch(model, inputs)
    save_model(model, path)
    return path


def write_repository(folder: Path, names: Sequence[str]) -> None:
    """Make a model repository of samples: ``NAME/1/model.onnx``.

    Raises
    ------
    ConfigError
        As `write_sample`.
    """
    for name in names:
        write_sample(name, folder / name / "1" / "model.onnx")


def give_weights(model: Any) -> None:
    """Replace the weights that a graph makes of one repeated number by random ones, the same each time.

    Parameters
    ----------
    model : onnx.ModelProto
        Whose weights are outputs of ConstantOfShape nodes with constant shapes; is changed.
    """
    helper = import_onnx().numpy_helper
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    uses = {name: (node, at) for node in graph.node for at, name in enumerate(node.input)}
    rng = np.random.default_rng(0)
    made = [node for node in graph.node if node.op_type == "ConstantOfShape" and node.input[0] in constants]
    for node in made:
        shape = [int(extent) for extent in helper.to_array(constants[node.input[0]])]
        user, at = uses.get(node.output[0], (None, 0))
        weights = _weights(user.op_type if user is not None else "", at, shape, rng)
        graph.initializer.append(helper.from_array(weights, node.output[0]))
        graph.node.remove(node)
    used = {name for node in graph.node for name in node.input}
    for tensors in (graph.initializer, graph.input):  # what only told the shapes of weights
        for tensor in [tensor for tensor in tensors if tensor.name in constants and tensor.name not in used]:
            tensors.remove(tensor)


def _weights(op: str, at: int, shape: list[int], rng: np.random.Generator) -> NDArray[np.float32]:
    """Weights for one input of an operator; He's initialization for products."""
    if op in ("Conv", "Gemm", "MatMul") and at == 1:
        inputs = int(np.prod(shape[1:])) or 1
        return rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / inputs))
    if op == "BatchNormalization":
        return np.full(shape, 1.0 if at in (1, 4) else 0.0, np.float32)  # scale and variance; offset and mean
    if op in ("Unsqueeze", "Mul"):
        return np.ones(shape, np.float32)
    return rng.standard_normal(shape, np.float32) * np.float32(0.01)
