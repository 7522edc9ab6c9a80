"""JPEG files to decode: cuttings of photographs that packages carry, each another one."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from io import BytesIO
from pathlib import Path

import numpy as np

from polymux.core.errors import PolymuxError

__all__ = ["make_pictures"]

PHOTOGRAPHS = (
    ("matplotlib", "matplotlib/mpl-data/sample_data/grace_hopper.jpg"),
    ("scikit-image", "skimage/data/rocket.jpg"),
    ("scikit-learn", "sklearn/datasets/images/china.jpg"),
    ("scikit-learn", "sklearn/datasets/images/flower.jpg"),
)
WIDTH, HEIGHT = 500, 375
"""Of each picture in pixels: what the images of ImageNet have on the average."""
QUALITY = 90


def make_pictures(count: int, seed: int = 0) -> list[bytes]:
    """Make JPEG files, all different, the same for the same seed.

    Raises
    ------
    PolymuxError
        Without Pillow, or without any of the photographs.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise PolymuxError(
            f"the benchmark needs the package pillow ({error}); install it: pip install 'polymux[inputs]'"
        ) from error
    photographs = [Image.open(path).convert("RGB") for path in _files()]
    if not photographs:
        names = ", ".join(sorted({package for package, _ in PHOTOGRAPHS}))
        raise PolymuxError(
            f"the benchmark needs photographs from one of the packages {names}; install one of them"
        )
    rng = np.random.default_rng(seed)
    pictures: dict[bytes, None] = {}
    while len(pictures) < count:
        photograph = photographs[len(pictures) % len(photographs)]
        part = rng.uniform(0.6, 1.0)
        size = round(photograph.width * part), round(photograph.height * part)
        left, top = (
            rng.integers(0, photograph.width - size[0] + 1),
            rng.integers(0, photograph.height - size[1] + 1),
        )
        box = (float(left), float(top), float(left) + size[0], float(top) + size[1])
        file = BytesIO()
        photograph.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC, box).save(file, "JPEG", quality=QUALITY)
        pictures[file.getvalue()] = None
    return list(pictures)


def _files() -> list[Path]:
    found = []
    for package, path in PHOTOGRAPHS:
        try:
            place = Path(str(distribution(package).locate_file(path)))
        except PackageNotFoundError:
            continue
        if place.is_file():
            found.append(place)
    return found
