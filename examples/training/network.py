"""A convolutional network for handwritten digits, and the same network as an ONNX model to serve."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from polymux.apps.digits import CLASSES, SIDE

MODEL = "digits"


class Network(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 5, padding=2),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 5, padding=2),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classes = nn.Sequential(
            nn.Flatten(),
            nn.Linear(2 * width * (SIDE // 4) ** 2, 128),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(128, CLASSES),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.classes(self.features(images))


def export(network: Network, repository: Path) -> Path:
    """Write the network as a version of the model `MODEL` into a repository that `polymux serve` reads."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = [
        numpy_helper.from_array(tensor.detach().numpy(), name)
        for name, tensor in network.state_dict().items()
        if tensor.is_floating_point()
    ]
    nodes, value = [], "images"

    def add(kind: str, *parameters: str, **attributes: object) -> None:
        nonlocal value
        result = f"value{len(nodes)}"
        nodes.append(helper.make_node(kind, [value, *parameters], [result], **attributes))
        value = result

    for index in (0, 4):
        conv, norm = f"features.{index}", f"features.{index + 1}"
        add("Conv", f"{conv}.weight", f"{conv}.bias", pads=[2, 2, 2, 2])
        add(
            "BatchNormalization",
            *(f"{norm}.{part}" for part in ("weight", "bias", "running_mean", "running_var")),
        )
        add("Relu")
        add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    add("Flatten")
    add("Gemm", "classes.1.weight", "classes.1.bias", transB=1)
    add("Relu")
    add("Gemm", "classes.4.weight", "classes.4.bias", transB=1)
    nodes[-1].output[0] = "scores"
    graph = helper.make_graph(
        nodes,
        MODEL,
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 1, SIDE, SIDE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", CLASSES])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    path = repository / MODEL / "1" / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def accuracy(network: Network, images: Tensor, labels: Tensor) -> float:
    network.eval()
    with torch.no_grad():
        right = (network(images).argmax(1) == labels).float().mean().item()
    network.train()
    return right
