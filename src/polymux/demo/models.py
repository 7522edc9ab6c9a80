"""The models that the demo serves, and the repository that it makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from polymux.demo.packages import package_file

__all__ = ["MODELS", "Model", "link_repository"]


@dataclass(frozen=True, slots=True)
class Model:
    """An ONNX model in a package.

    Attributes
    ----------
    name : str
        What it is called in the repository.
    package, path : str
        The package that carries it, and its file there.
    does : str
        What it is for, in a few words.
    """

    name: str
    package: str
    path: str
    does: str

    @property
    def file(self) -> Path:
        """Place of the ONNX file; raises `DemoFailed` without its package."""
        return package_file(self.package, self.path)


_OCR = "rapidocr_onnxruntime/models"
MODELS = {
    model.name: model
    for model in (
        Model(
            "detect_text",
            "rapidocr-onnxruntime",
            f"{_OCR}/ch_PP-OCRv4_det_infer.onnx",
            "finds lines of text in a picture (PP-OCRv4)",
        ),
        Model(
            "read_text",
            "rapidocr-onnxruntime",
            f"{_OCR}/ch_PP-OCRv4_rec_infer.onnx",
            "reads a line of text (PP-OCRv4)",
        ),
        Model(
            "name_file_type",
            "magika",
            "magika/models/standard_v3_3/model.onnx",
            "names a file's type (Magika)",
        ),
        Model(
            "hear_speech",
            "silero-vad",
            "silero_vad/data/silero_vad.onnx",
            "tells speech from silence (Silero VAD)",
        ),
    )
}
"""Name in the repository -> model."""


def link_repository(folder: Path) -> None:
    """Fill an empty folder with links, ``NAME/1/model.onnx``, as ``polymux serve`` wants it.

    Raises
    ------
    DemoFailed
        When a package is missing.
    """
    for model in MODELS.values():
        version = folder / model.name / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").symlink_to(model.file)
