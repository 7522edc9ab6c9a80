"""The stage ``image``: a JPEG, PNG or WebP file to a tensor of the size and range that a model takes.

Decoding and resizing are Pillow's, which lets other threads run meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.kernel_spec import BufferParam
from polymux.inputs.options import Options
from polymux.inputs.stage import InputStage

__all__ = ["make"]

Array = NDArray[Any]

FORMATS = ("JPEG", "PNG", "WEBP")
OPTIONS = ("into", "size", "fit", "resize", "normalise", "mean", "std", "order", "max_pixels")
NORMALISE = {
    "unit": ((0.0,), (1.0,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "signed": ((0.5,), (0.5,)),
    "none": ((0.0,), (1 / 255,)),
}
"""Mean and standard deviation of each colour, of values from 0 to 1; ``none`` leaves 0 to 255."""
MAX_SIDE = 16384
MAX_PIXELS = 64_000_000
"""An image of more pixels is refused before it is decoded: a small file can hold a very large image."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a tensor holds an image.

    Attributes
    ----------
    height, width : int
        In pixels.
    colours : int
        3, or 1 for grey.
    first : bool
        Whether the colours are the first of its three last dimensions (CHW), or the last (HWC).
    """

    height: int
    width: int
    colours: int
    first: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        if self.first:
            return (self.colours, self.height, self.width)
        return (self.height, self.width, self.colours)


class _Image:
    """The kernel: one encoded image in, one tensor out."""

    def __init__(self, options: Options, layout: _Layout, dtype: DType) -> None:
        self._pillow = _import_pillow(options)
        self._layout = layout
        self._fit = options.choice("fit", ("crop", "stretch", "pad"))
        self._shorter = options.whole("resize", 0, 1, MAX_SIDE)
        self._reversed = options.choice("order", ("rgb", "bgr")) == "bgr"
        self._max_pixels = options.whole("max_pixels", MAX_PIXELS, 1, 1 << 40)
        self._scale, self._offset = _normalisation(options, layout, dtype)
        if self._shorter and (self._fit != "crop" or self._shorter < min(layout.height, layout.width)):
            raise options.error(
                f"resize={self._shorter}: the shorter side before the crop; give it with fit=crop, and not less than"
                f" {min(layout.height, layout.width)}"
            )

    def __call__(self, data: Array, out: Array) -> None:
        pixels = np.asarray(self._sized(self._decoded(data)))
        if pixels.ndim == 2:
            pixels = pixels[:, :, np.newaxis]
        if self._reversed:
            pixels = pixels[:, :, ::-1]
        if self._layout.first:
            pixels = pixels.transpose(2, 0, 1)
        target = out.reshape(self._layout.shape)
        if self._scale is None or self._offset is None:
            np.copyto(target, pixels)
        else:
            np.multiply(pixels, self._scale, out=target, casting="same_kind")
            np.add(target, self._offset, out=target, casting="same_kind")

    def _decoded(self, data: Array) -> Any:
        try:
            image = self._pillow.open(BytesIO(data.tobytes()), formats=FORMATS)
            if image.width * image.height > self._max_pixels:
                raise InvalidRequest(
                    f"the image has {image.width} x {image.height} pixels, more than the {self._max_pixels} that it may"
                    " have (max_pixels)"
                )
            image.load()
            mode = "RGB" if self._layout.colours == 3 else "L"
            return image if image.mode == mode else image.convert(mode)
        except InvalidRequest:
            raise
        except self._pillow.DecompressionBombError as error:
            raise InvalidRequest(f"the image has too many pixels: {error}") from error
        except Exception as error:  # each decoder raises errors of its own
            unknown = isinstance(error, self._pillow.UnidentifiedImageError)
            problem = "unknown format" if unknown else str(error)
            raise InvalidRequest(
                f"the {data.nbytes} bytes are no image that can be decoded ({problem}); send a whole file of the format"
                f" {', '.join(FORMATS)}"
            ) from error

    def _sized(self, image: Any) -> Any:
        width, height = self._layout.width, self._layout.height
        bilinear = self._pillow.Resampling.BILINEAR
        if self._fit == "crop":
            # One resampling of the part that is wanted, instead of a resized image that is cut afterwards.
            scale = max(width / image.width, height / image.height)
            scale *= max(1.0, self._shorter / min(width, height))
            box_width, box_height = min(image.width, width / scale), min(image.height, height / scale)
            left, top = (image.width - box_width) / 2, (image.height - box_height) / 2
            box = (left, top, left + box_width, top + box_height)
            return image.resize((width, height), bilinear, box)
        if self._fit == "stretch":
            return image.resize((width, height), bilinear)
        scale = min(width / image.width, height / image.height)
        inner = max(1, round(image.width * scale)), max(1, round(image.height * scale))
        canvas = self._pillow.new(image.mode, (width, height))
        canvas.paste(image.resize(inner, bilinear), ((width - inner[0]) // 2, (height - inner[1]) // 2))
        return canvas


def make(options: Options) -> InputStage:
    """Make the stage; see `polymux.inputs.registry.make_stage`."""
    options.check_known(OPTIONS)
    candidates = [param for param in options.targets if _can_hold(param)]
    target = options.target("an image", candidates)
    layout = _layout(options, target)
    shape = (*[1] * (len(target.shape or ()) - 3), *layout.shape)
    output = BufferParam(target.name, target.dtypes, shape)
    settings = sorted((key, value) for key, value in options.values.items() if key not in ("into", "size"))
    return InputStage(
        name="image",
        identity=f"image {settings} {target.dtypes[0].name} {shape}",
        inputs=(BufferParam("image", (DType.U8,), (None,)),),
        outputs=(output,),
        function=_Image(options, layout, target.dtypes[0]),
    )


def _can_hold(param: BufferParam) -> bool:
    shape = param.shape or ()
    batch = shape[:-3]
    return (
        len(shape) in (3, 4)
        and all(extent in (None, 1) for extent in batch)
        and param.dtypes[0] in (DType.U8, DType.F16, DType.F32, DType.F64)
        and (shape[-3] in (1, 3) or shape[-1] in (1, 3))
    )


def _layout(options: Options, target: BufferParam) -> _Layout:
    shape = target.shape or ()
    first = shape[-3] in (1, 3)
    height, width = (shape[-2], shape[-1]) if first else (shape[-3], shape[-2])
    colours = shape[-3] if first else shape[-1]
    assert colours is not None
    text = options.values.get("size")
    if text is not None:
        sides = text.split("x")
        if len(sides) > 2 or not all(side.isascii() and side.isdigit() for side in sides):
            raise options.error(
                f"size={text}: give pixels, such as size=224 or size=320x240 (width x height)"
            )
        given = int(sides[-1]), int(sides[0])
        for side, wanted in zip(given, (height, width), strict=True):
            if not 1 <= side <= MAX_SIDE or wanted not in (None, side):
                raise options.error(
                    f"size={text} does not fit '{target.name}' of shape"
                    f" {[-1 if extent is None else extent for extent in shape]} (sides of 1 to {MAX_SIDE})"
                )
        height, width = given
    if height is None or width is None:
        raise options.error(f"'{target.name}' takes images of any size; say which: size=224 or size=320x240")
    return _Layout(height, width, colours, first)


def _normalisation(
    options: Options, layout: _Layout, dtype: DType
) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
    """Return what pixels are multiplied by, and what is added then; None: pixels stay as they are."""
    if not dtype.is_float:
        for key in ("normalise", "mean", "std"):
            if options.values.get(key, "none") != "none":
                raise options.error(f"{key}={options.values[key]}: the tensor has bytes, which stay 0 to 255")
        return None, None
    mean, std = NORMALISE[options.choice("normalise", tuple(NORMALISE))]
    mean, std = options.numbers("mean") or mean, options.numbers("std") or std
    for key, values in (("mean", mean), ("std", std)):
        if len(values) not in (1, layout.colours):
            raise options.error(f"{key} has {len(values)} numbers for {layout.colours} colours")
    if not all(np.isfinite([*mean, *std])) or min(map(abs, std)) < 1e-9:
        raise options.error("mean and std have to be finite numbers, and std not 0")
    each = (layout.colours, 1, 1) if layout.first else (layout.colours,)
    scale = np.broadcast_to(1 / (255 * np.array(std, np.float64)), layout.colours)
    offset = np.broadcast_to(-np.array(mean, np.float64) / np.array(std, np.float64), layout.colours)
    return scale.reshape(each).astype(np.float32), offset.reshape(each).astype(np.float32)


def _import_pillow(options: Options) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise options.error(
            f"it needs the package pillow ({error}); install it: pip install 'polymux[inputs]'"
        ) from error
    Image.init()
    return Image
