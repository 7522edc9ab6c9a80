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
Size = tuple[int, int]
"""Width and height in pixels."""
SMALL: Size = (500, 375)
"""What the images of ImageNet have on the average: 0.2 megapixels."""
LARGE: Size = (1280, 960)
"""1.2 megapixels, as pages and cameras of the net give them."""
GRAIN = 4.0
"""Standard deviation of the noise of a sensor, of 255: without it the cuttings are smoother than photographs."""
QUALITY = 90


def make_pictures(count: int, seed: int, size: Size = SMALL) -> list[bytes]:
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
    grain = rng.normal(0, GRAIN, (size[1], size[0], 3)).astype(np.int8)
    pictures: dict[bytes, None] = {}
    while len(pictures) < count:
        photograph = photographs[len(pictures) % len(photographs)]
        width, height = (round(side * rng.uniform(0.6, 1.0)) for side in photograph.size)
        left, top = (
            rng.integers(0, photograph.width - width + 1),
            rng.integers(0, photograph.height - height + 1),
        )
        box = (float(left), float(top), float(left + width), float(top + height))
        pixels = np.asarray(photograph.resize(size, Image.Resampling.BICUBIC, box))
        shift = int(rng.integers(0, size[0]))
        grainy = np.clip(pixels + np.roll(grain, shift, axis=1).astype(np.int16), 0, 255).astype(np.uint8)
        file = BytesIO()
        Image.fromarray(grainy).save(file, "JPEG", quality=QUALITY)
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
