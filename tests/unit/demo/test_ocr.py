"""Reading pictures: rectangles, decoding, and a real photographed page."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image

from polymux.demo import ocr
from polymux.demo.inference import Reference, Tensors
from polymux.demo.pictures import PRINTED, Pictures
from polymux.demo.quadrilateral import cut_out, grown, smallest_rectangle

CHARACTERS = ("", "a", "b", " ")


def turned(width: float, height: float, degrees: float, centre: tuple[float, float]) -> np.ndarray:
    across = np.array([math.cos(math.radians(degrees)), math.sin(math.radians(degrees))])
    down = np.array([-across[1], across[0]])
    grid = [
        x * across + y * down
        for x in np.linspace(-0.5, 0.5, 41) * width
        for y in np.linspace(-0.5, 0.5, 41) * height
    ]
    return np.array(grid) + centre


@pytest.mark.parametrize("degrees", [0.0, 7.0, -12.0, 30.0])
def test_the_smallest_rectangle_has_the_size_and_the_corners_of_the_points(degrees: float) -> None:
    corners = smallest_rectangle(turned(60, 20, degrees, (100, 50)))
    assert corners is not None
    assert sorted([math.dist(corners[0], corners[1]), math.dist(corners[0], corners[3])]) == pytest.approx(
        [20, 60]
    )
    assert corners.mean(axis=0) == pytest.approx([100, 50])
    assert corners.sum(axis=1).argmin() == 0  # begins at the upper left


def test_points_on_a_line_have_no_rectangle() -> None:
    assert smallest_rectangle(np.array([[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]])) is None


def test_a_rectangle_grows_by_the_same_distance_on_every_side() -> None:
    corners = np.array([[10.0, 10.0], [40.0, 10.0], [40.0, 20.0], [10.0, 20.0]])
    distance = 1.6 * 300 / 80
    expected = corners + distance * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    assert grown(corners, 1.6) == pytest.approx(expected)


def test_a_piece_is_cut_out_upright_and_scaled_to_its_height() -> None:
    picture = Image.new("RGB", (100, 60))
    picture.paste((255, 0, 0), (20, 10, 60, 30))
    piece = cut_out(picture, np.array([[20.0, 10.0], [60.0, 10.0], [60.0, 30.0], [20.0, 30.0]]), 40)
    assert piece.size == (80, 40)
    assert piece.getpixel((40, 20)) == (255, 0, 0)


def test_the_alphabet_begins_with_the_blank_and_ends_with_the_space() -> None:
    assert ocr.alphabet("x\ny\n") == ("", "x", "y", " ")


@pytest.mark.parametrize(
    ("steps", "text"),
    [([1, 1, 0, 1, 2, 2], "aab"), ([0, 0], ""), ([2, 0, 0, 3, 1], "b a")],
)
def test_decoding_keeps_repetitions_only_across_blanks(steps: list[int], text: str) -> None:
    classes = np.full((len(steps), 4), 0.1, np.float32)
    classes[np.arange(len(steps)), steps] = 0.7
    found, confidence = ocr._decode(classes, CHARACTERS)
    assert found == text
    assert confidence == pytest.approx(0.7 if text else 0.0)


def test_lines_are_found_from_top_to_bottom_and_read_one_by_one() -> None:
    asked: list[tuple[str, tuple[int, ...]]] = []

    def infer(model: str, inputs: Tensors) -> Tensors:
        asked.append((model, inputs["x"].shape))
        if model == "detect_text":
            found = np.zeros((1, 1, *inputs["x"].shape[2:]), np.float32)
            found[0, 0, 40:60, 100:500] = found[0, 0, 200:230, 50:300] = 0.9
            return {"y": found}
        steps = np.zeros((1, 2, 4), np.float32)
        steps[0, :, 1 if inputs["x"].shape[3] > 300 else 2] = 1
        return {"y": steps}

    lines = ocr.read(Image.new("RGB", (768, 320)), CHARACTERS, infer)
    assert [line.text for line in lines] == ["a", "b"]
    assert [model for model, _ in asked] == ["detect_text", "read_text", "read_text"]
    assert asked[0][1] == (1, 3, 320, 768)
    assert all(shape[:3] == (1, 3, 48) for _, shape in asked[1:])


def test_a_photographed_page_is_read_as_it_is_printed() -> None:
    pictures = Pictures()
    pictures._pictures = {"page.png": pictures._pictures["page.png"]}
    reference = Reference(pictures.models)
    pictures.prepare(reference)
    pictures.work(0, reference, lambda _: True, lambda _: None)
    same, printed = pictures.findings()
    assert same.good
    assert printed.good
    assert pictures._page[:6] == list(PRINTED[:6])
