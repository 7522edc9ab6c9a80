"""Demands on a given number of devices, with as much headroom as they allow."""

from __future__ import annotations

import pytest

from polymux.perfmodel.capacity.demand import Demand, DeviceKind
from polymux.perfmodel.capacity.fit import fit
from polymux.perfmodel.capacity.pack import pack
from polymux.perfmodel.surface import TableSurface

MS = 1_000_000
SURFACE = TableSurface((25, 50, 100), (1, 16), ((12 * MS, 48 * MS), (6 * MS, 24 * MS), (4 * MS, 16 * MS)))
DEMANDS = [Demand(f"m{i}", 50.0 * (i + 1), 100 * MS, {"gpu": SURFACE}) for i in range(12)]


def kind(count: int) -> DeviceKind:
    return DeviceKind("gpu", 100, (25, 50, 100), limit=count)


@pytest.mark.parametrize("more", [0, 3, 8])
def test_nearly_all_devices_are_used_and_nothing_is_left_out(more: int) -> None:
    count = len(pack(DEMANDS, [kind(100)]).devices) + more
    found = fit(DEMANDS, [kind(count)])
    assert found is not None
    assert not found.unplaced
    assert 0.7 * count <= len(found.devices) <= count
    rates = {d.model: sum(device.rate_per_s(d.model) for device in found.devices) for d in DEMANDS}
    assert rates == pytest.approx({d.model: d.rate_per_s for d in DEMANDS})


def test_too_few_devices_have_no_fit() -> None:
    assert fit(DEMANDS, [kind(1)]) is None
    assert fit(DEMANDS, [kind(0)]) is None


def test_many_devices_for_little_work_end() -> None:
    found = fit(DEMANDS[:1], [kind(50)])
    assert found is not None
    assert not found.unplaced
