"""What follows from a profile, and its picture."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from polymux.core.errors import ConfigError
from polymux.profiles import DeviceIdentity, Grid, NodeCost, Point, ProfiledModel, ProfileStore, Roof
from polymux.profiling.picture import draw
from polymux.profiling.summary import Demand, summarize

MODEL = ProfiledModel("sha256:" + "12" * 32, "net", "/m/net.onnx", "rewritten", 4_000_000, "x=Nx3x8x8")
DEVICE = DeviceIdentity("cpu", "Processor", 4)
GRID = Grid((1, 2, 3, 4), (1, 4, 16))
MS = 1_000_000


def latency_ns(units: int, batch: int) -> int:
    """A model that computes two thirds of its time in parallel, on up to three units."""
    return round(MS * (1 + batch) * (1 / 3 + 2 / 3 / min(units, 3)))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ProfileStore]:
    with ProfileStore(tmp_path / "p.db", write=True) as opened:
        opened.put_model(MODEL)
        opened.put_device(DEVICE)
        opened.put_grid(MODEL.key, DEVICE.key, GRID)
        for units, batch in GRID.places:
            its = latency_ns(units, batch)
            opened.put_point(
                MODEL.key, DEVICE.key, Point(units, batch, 20, its, its, its, its, its // 50, 0.95)
            )
        yield opened


def test_knees_optimum_and_error_follow_from_the_points(store: ProfileStore) -> None:
    summary = summarize(store, MODEL, DEVICE, Demand(60 * MS, 400))
    assert summary is not None
    assert summary.knees["tolerance"] == {1: 3, 4: 3, 16: 3}
    assert set(summary.knees) == {"derivative", "chord", "tolerance"}
    assert summary.best is not None
    best = max(GRID.places, key=lambda place: place[1] / (latency_ns(*place) ** 2 * place[0]))
    assert (summary.best.units, summary.best.batch) == best
    assert summary.optimum is not None
    assert summary.optimum.throughput_per_s >= 400
    assert summary.optimum.latency_ns <= 30 * MS
    assert summary.median_error is not None
    assert summary.median_error < 0.2
    hopeless = summarize(store, MODEL, DEVICE, Demand(1 * MS, 400))
    assert hopeless is not None
    assert hopeless.optimum is None
    assert "more than half of the SLO" in hopeless.why_none


def test_the_bound_follows_from_the_roof_of_the_share_and_the_batch(store: ProfileStore) -> None:
    for units in GRID.units:
        store.put_roof(
            DEVICE.key, Roof(units, 1e10 * units, 1e9 * units)
        )  # a ridge of 10 operations per byte
    product = NodeCost(
        "MatMul", 4e6, 4e6, 1e6 + 1e3, 1e3, 1e6, True
    )  # 4 per byte alone, more with larger batches
    store.put_costs(MODEL.key, [product])
    summary = summarize(store, MODEL, DEVICE)
    assert summary is not None
    assert summary.bounds[1, 1].by == "memory"
    assert summary.bounds[1, 16].by == "compute"
    assert summary.bounds[1, 1].intensity == pytest.approx(4e6 / (1e6 + 1e3))
    assert summary.bounds[1, 1].least_ns == pytest.approx(1e9 * (1e6 + 1e3) / 1e9)
    assert summary.bounds[4, 16].least_ns == pytest.approx(1e9 * 16 * 4e6 / 4e10)
    assert summary.bounds[1, 1].of_least == pytest.approx(latency_ns(1, 1) / summary.bounds[1, 1].least_ns)
    assert json.loads(json.dumps(summary.to_json()))["bounds"][0]["by"] == "memory"


def test_an_unfinished_profile_has_a_table_and_nothing_that_follows(
    store: ProfileStore, tmp_path: Path
) -> None:
    store.put_grid(MODEL.key, DEVICE.key, Grid((1, 2, 3, 4), (1, 4, 16, 32)))
    summary = summarize(store, MODEL, DEVICE)
    assert summary is not None
    assert summary.surface is None
    assert len(summary.points) == 12
    assert (summary.best, summary.knees, summary.efficacy(1, 1)) == (None, {}, None)
    with pytest.raises(ConfigError, match="not finished"):
        draw(summary, tmp_path / "p.png")


def test_a_model_that_was_never_profiled_has_no_summary(store: ProfileStore) -> None:
    store.forget(MODEL.key, DEVICE.key)
    assert summarize(store, MODEL, DEVICE) is None


@pytest.mark.parametrize(("ending", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_the_picture_is_written_in_the_format_of_its_ending(
    store: ProfileStore, tmp_path: Path, ending: str, begins: bytes
) -> None:
    summary = summarize(store, MODEL, DEVICE, Demand(60 * MS, 400))
    assert summary is not None
    path = tmp_path / "deep" / f"p{ending}"
    draw(summary, path)
    assert path.read_bytes().startswith(begins)


def test_a_picture_that_cannot_be_written_is_an_error(store: ProfileStore, tmp_path: Path) -> None:
    summary = summarize(store, MODEL, DEVICE)
    assert summary is not None
    with pytest.raises(ConfigError, match=r"\.gif.*\.png, \.svg, \.pdf"):
        draw(summary, tmp_path / "p.gif")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="name another file"):
        draw(summary, tmp_path / "file" / "p.png")
