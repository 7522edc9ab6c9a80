from __future__ import annotations

import sys
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.kernel_spec import BufferParam
from polymux.inputs import input_stage, make_stage
from tests.unit.inputs.stages import encoded

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 10, 3), np.uint8)


def smooth(height: int, width: int) -> NDArray[np.uint8]:
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], axis=-1).astype(np.uint8)


def result(text: str, shape: tuple[int, ...], data: bytes, dtype: str = "f4") -> NDArray[Any]:
    (tensor,) = input_stage(text, shape, dtype).run([np.frombuffer(data, np.uint8)])
    assert tensor.shape == shape
    return tensor


def params(*shapes: tuple[int | None, ...], dtype: DType = DType.F32) -> list[BufferParam]:
    return [BufferParam(f"x{index}", (dtype,), shape) for index, shape in enumerate(shapes)]


def test_an_image_of_the_right_size_keeps_its_pixels() -> None:
    assert np.array_equal(result("image", (6, 10, 3), encoded(PIXELS), "u1"), PIXELS)


def test_colours_come_first_where_the_tensor_has_them_first() -> None:
    found = result("image,normalise=none", (1, 3, 6, 10), encoded(PIXELS))
    assert np.allclose(found[0], PIXELS.transpose(2, 0, 1), atol=1e-4)


@pytest.mark.parametrize(
    ("options", "mean", "std"),
    [
        ("", 0.0, 1.0),
        (",normalise=signed", 0.5, 0.5),
        (",normalise=imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        (",mean=0.1/0.2/0.3,std=2", (0.1, 0.2, 0.3), 2.0),
    ],
)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_pixels_are_normalised_as_the_options_say(options: str, mean: Any, std: Any, dtype: str) -> None:
    expected = (PIXELS / 255 - np.array(mean)) / np.array(std)
    found = result(f"image{options}", (6, 10, 3), encoded(PIXELS), dtype)
    assert found.dtype == np.dtype(dtype)
    assert np.allclose(found, expected, atol=4e-3 if dtype == "f2" else 1e-5)


def test_the_order_of_colours_can_be_reversed() -> None:
    assert np.array_equal(result("image,order=bgr", (6, 10, 3), encoded(PIXELS), "u1"), PIXELS[:, :, ::-1])


def test_a_grey_tensor_gets_the_luminance() -> None:
    grey = np.asarray(Image.fromarray(PIXELS).convert("L"))
    assert np.array_equal(result("image", (1, 6, 10), encoded(PIXELS), "u1")[0], grey)


def test_the_default_fit_is_the_middle_of_an_image_whose_shorter_side_fits() -> None:
    wide = smooth(40, 120)
    found = result("image", (20, 20, 3), encoded(wide), "u1")
    expected = np.asarray(Image.fromarray(wide[:, 40:80]).resize((20, 20), Image.Resampling.BILINEAR))
    assert np.abs(found.astype(int) - expected).max() <= 3


def test_with_resize_the_shorter_side_has_that_many_pixels_before_the_crop() -> None:
    picture = smooth(64, 64)
    found = result("image,resize=32", (16, 16, 3), encoded(picture), "u1")
    whole = np.asarray(Image.fromarray(picture).resize((32, 32), Image.Resampling.BILINEAR))
    assert np.abs(found.astype(int) - whole[8:24, 8:24]).max() <= 3


def test_a_stretched_image_fills_the_tensor() -> None:
    picture = smooth(40, 120)
    expected = np.asarray(Image.fromarray(picture).resize((20, 30), Image.Resampling.BILINEAR))
    assert np.array_equal(result("image,fit=stretch", (30, 20, 3), encoded(picture), "u1"), expected)


def test_a_padded_image_is_whole_and_has_black_beside_it() -> None:
    white = np.full((10, 40, 3), 255, np.uint8)
    found = result("image,fit=pad", (20, 20, 3), encoded(white), "u1")
    assert (found[8:12] > 250).all()
    assert not found[:7].any()
    assert not found[13:].any()


@pytest.mark.parametrize(("kind", "options"), [("JPEG", {"quality": 95}), ("WEBP", {"lossless": True})])
def test_other_formats_are_decoded(kind: str, options: dict[str, Any]) -> None:
    picture = smooth(32, 32)
    found = result("image", (32, 32, 3), encoded(picture, kind, **options), "u1")
    assert np.abs(found.astype(int) - picture).mean() < 8


@pytest.mark.parametrize("mode", ["P", "RGBA", "LA", "1", "CMYK", "I;16"])
def test_images_of_any_mode_become_colours(mode: str) -> None:
    file = BytesIO()
    kind = "JPEG" if mode == "CMYK" else "PNG"
    picture = (
        Image.new("I;16", (8, 8), 300) if mode == "I;16" else Image.fromarray(smooth(8, 8)).convert(mode)
    )
    picture.save(file, kind)
    assert result("image", (8, 8, 3), file.getvalue(), "u1").shape == (8, 8, 3)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no image",
        encoded(PIXELS)[:40],
        encoded(smooth(64, 64), "JPEG")[:400],
        encoded(PIXELS, "BMP"),
        b"\xff\xd8" + bytes(500),
    ],
    ids=["empty", "text", "half a PNG", "half a JPEG", "another format", "a beginning"],
)
def test_what_is_no_image_is_refused_with_the_formats(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="no image that can be decoded.*JPEG, PNG, WEBP"):
        result("image", (8, 8, 3), data)


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(InvalidRequest, match=r"6 pixels, more than the 50 .*max_pixels"):
        result("image,max_pixels=50", (8, 8, 3), encoded(PIXELS))


def test_a_small_file_with_a_huge_image_is_refused() -> None:
    file = BytesIO()
    Image.new("1", (20_000, 10_000)).save(file, "PNG")
    assert len(file.getvalue()) < 100_000
    with pytest.raises(InvalidRequest, match="too many pixels: .*200000000"):
        result("image", (8, 8, 3), file.getvalue())


def test_the_image_goes_into_the_only_input_that_can_hold_one() -> None:
    targets = params((None, 2), (None, 3, None, None), (1,))
    (output,) = make_stage("image,size=32x16", targets).outputs
    assert (output.name, output.shape) == ("x1", (1, 3, 16, 32))


def test_one_of_several_inputs_is_named() -> None:
    targets = params((1, 3, 8, 8), (1, 8, 8, 1))
    with pytest.raises(InvalidRequest, match="2 of them can be one; name it: into=NAME"):
        make_stage("image", targets)
    (output,) = make_stage("image,into=x1", targets).outputs
    assert (output.name, output.shape) == ("x1", (1, 8, 8, 1))


@pytest.mark.parametrize(
    ("text", "shape", "words"),
    [
        ("image,colour=red", (3, 8, 8), "no option 'colour'; it has .*fit"),
        ("image", (3, None, None), "any size; say which: size=224"),
        ("image,size=224", (3, 8, 8), r"size=224 does not fit .*\[3, 8, 8\]"),
        ("image,size=0", (3, None, None), "size=0"),
        ("image,size=1x2x3", (3, None, None), "size=1x2x3"),
        ("image,fit=squeeze", (3, 8, 8), "fit=squeeze: give one of crop, stretch, pad"),
        ("image,resize=4", (3, 8, 8), "resize=4.*not less than 8"),
        ("image,resize=16,fit=pad", (3, 8, 8), "with fit=crop"),
        ("image,std=0", (3, 8, 8), "std not 0"),
        ("image,mean=1/2", (3, 8, 8), "2 numbers for 3 colours"),
        ("image,mean=dark", (3, 8, 8), "mean=dark: give numbers"),
        ("image,normalise=yes", (3, 8, 8), "normalise=yes"),
        ("image,into=y", (3, 8, 8), "into=y.*'x0'"),
        ("image", (5, 8, 8), "none can be one"),
        ("image", (2, 3, 8, 8), "none can be one"),
    ],
)
def test_a_stage_that_cannot_be_is_refused(text: str, shape: tuple[int | None, ...], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        make_stage(text, params(shape))


def test_bytes_stay_bytes() -> None:
    with pytest.raises(InvalidRequest, match="normalise=imagenet: the tensor has bytes"):
        make_stage("image,normalise=imagenet", params((3, 8, 8), dtype=DType.U8))


def test_stages_of_the_same_settings_have_the_same_identity_whatever_the_input_is_called() -> None:
    a = make_stage("image,fit=pad,std=2", [BufferParam("a", (DType.F32,), (3, 8, 8))])
    b = make_stage("image,std=2,fit=pad,into=b", [BufferParam("b", (DType.F32,), (3, 8, 8))])
    c = make_stage("image,fit=pad,std=3", [BufferParam("a", (DType.F32,), (3, 8, 8))])
    d = make_stage("image,fit=pad,std=2", [BufferParam("a", (DType.F32,), (3, 8, 9))])
    assert a.identity == b.identity
    assert len({a.identity, c.identity, d.identity}) == 3


@pytest.mark.parametrize(
    ("package", "stage"), [("PIL", "image"), ("tokenizers", "tokenise,file=tokenizer.json")]
)
def test_a_package_that_is_missing_is_named_with_what_brings_it(
    package: str, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    targets = [*params((3, 8, 8)), BufferParam("input_ids", (DType.I64,), (1, 8))]
    with pytest.raises(InvalidRequest, match=r"needs the package .*pip install 'polymux\[inputs\]'"):
        make_stage(stage, targets)
