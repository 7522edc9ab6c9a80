"""Workload files: what they say is what is simulated; whatever is wrong is told with file, key, value and remedy."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polymux.core.errors import ConfigError, InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.serving.event import ServingDeviceAdded, ServingDeviceLost
from polymux.core.serving.model import ModelName
from polymux.perfmodel import tables
from polymux.perfmodel.energy import PowerModel
from polymux.perfmodel.flat_knee import FlatKneeSurface
from polymux.perfmodel.interference import NO_INTERFERENCE
from polymux.planning.workload import Workload, parse_workload, read_workload
from polymux.sim.serving import Bursty, ClosedLoop, Counts, Poisson, Slowdown, Timestamps, Uniform

DEVICE = '[[device]]\nkind = "v100"\n'
MODEL = '[[model]]\nname = "resnet50"\nslo_ms = 50\nrate_per_s = 10\n'
ROW = "{ share = [50, 100], batch = [1, 4], latency_ms = [[4, 8], [2, 4]] }"
SURFACE = f"surface = [{ROW}]\n"
OWN = f'[[model]]\nname = "mine"\nslo_ms = 50\nrate_per_s = 10\n{SURFACE}'


def parse(text: str, folder: Path = Path()) -> Workload:
    return parse_workload(str(folder / "w.toml"), tomllib.loads(text))


def arrivals(text: str, folder: Path = Path()) -> Any:
    model = f'[[model]]\nname = "mine"\nslo_ms = 50\narrivals = {text}\n{SURFACE}'
    return parse(DEVICE + model, folder).loads[0].arrivals


def test_a_short_file_takes_everything_else_from_the_tables() -> None:
    workload = parse(DEVICE + MODEL)
    assert workload.name == "w"
    (load,) = workload.loads
    assert load.model.surfaces == {"v100": tables.surface("v100", "resnet50")}
    assert load.arrivals == Poisson(10)
    assert (load.model.rate_per_s, load.model.slo_ns, load.model.weight) == (10, 50_000_000, 100)
    (device,) = workload.serving_devices()
    assert (device.id, device.units, device.shares) == ("v100:0", 100, tuple(range(10, 101, 10)))
    assert device.memory_nbytes == 16 << 30
    assert workload.scenario().power == {"v100": PowerModel(40, 300)}


def test_a_file_may_say_everything() -> None:
    workload = parse(
        """
        name = "all of it"
        [simulation]
        duration_s = 2.5
        warmup_s = 0.5
        seed = 7
        noise = 0.1
        prepare_s = 0.25
        policies = ["unscheduled"]
        [[device]]
        kind = "chip"
        count = 2
        units = 8
        shares = [2, 4, 8]
        memory = "4GiB"
        idle_w = 1
        busy_w = 10
        [[model]]
        name = "mine"
        slo_ms = 20
        weight = 50
        priority = 3
        items = 2
        memory = "100MiB"
        max_batch = 6
        rate_per_s = 5
        surface = [{ kind = "chip", share = [2, 8], batch = [1, 4], latency_ms = [[8, 16], [2, 4]] }]
        [[slowdown]]
        model = "mine"
        factor = 10
        from_s = 1
        to_s = 2
        [[loss]]
        device = "chip:1"
        at_s = 1.5
        back_s = 2
        """
    )
    scenario = workload.scenario()
    assert (scenario.duration_ns, scenario.warmup_ns, scenario.prepare_ns) == (
        2_500_000_000,
        500_000_000,
        250_000_000,
    )
    assert (workload.name, scenario.seed, scenario.noise, workload.policies) == (
        "all of it",
        7,
        0.1,
        ("unscheduled",),
    )
    assert [(d.id, d.units, d.shares, d.memory_nbytes) for d in scenario.devices] == [
        ("chip:0", 8, (2, 4, 8), 4 << 30),
        ("chip:1", 8, (2, 4, 8), 4 << 30),
    ]
    load = scenario.loads[0]
    assert (load.items, load.model.weight, load.model.priority) == (2, 50, 3)
    assert load.model.memory_nbytes == 100 << 20
    assert load.model.surfaces["chip"].max_batch == 6
    assert load.model.surfaces["chip"].latency_ns(4, 1) == 6_000_000
    assert scenario.slowdowns == (Slowdown(ModelName("mine"), 10**9, 2 * 10**9, 10.0),)
    lost = ServingDeviceLost(DeviceId("chip:1"), "lost, as the workload says")
    assert scenario.events == (
        (1_500_000_000, lost),
        (2_000_000_000, ServingDeviceAdded(scenario.devices[1])),
    )
    assert [d.id for d in workload.scenario(devices=1).devices] == ["chip:0"]
    assert workload.scenario(devices=1).events == ()


def test_copies_of_a_model_are_models_of_their_own() -> None:
    loads = parse(DEVICE + MODEL + "copies = 3\n").loads
    assert [load.model.name for load in loads] == ["resnet50-0", "resnet50-1", "resnet50-2"]


def test_a_model_can_be_unknown_to_the_policy() -> None:
    load = parse(DEVICE + MODEL + "known = false\n").loads[0]
    assert load.model.surfaces == {}
    assert load.model.max_batch == 32
    assert load.surfaces == {"v100": tables.surface("v100", "resnet50")}


def test_a_model_may_be_known_by_another_name_and_assumed_flat() -> None:
    text = '[[model]]\nname = "mine"\ntable = "resnet50"\nassume = "flat"\nslo_ms = 50\nrate_per_s = 1\n'
    surface = parse(DEVICE + text).loads[0].model.surfaces["v100"]
    assert isinstance(surface, FlatKneeSurface)
    assert surface.knee_units == 40


def test_what_was_not_measured_can_be_estimated_from_another_kind_by_its_compute_units() -> None:
    device = '[[device]]\nkind = "t4"\nestimate_from = "v100"\n'
    surface = parse(device + MODEL).loads[0].model.surfaces["t4"]
    half = tables.surface("v100", "resnet50").latency_ns(50, 16)  # a T4 has half the units of a V100
    assert surface.latency_ns(100, 16) == pytest.approx(half, rel=0.01)
    flat = parse(device + MODEL + 'assume = "flat"\n').loads[0].model.surfaces["t4"]
    assert isinstance(flat, FlatKneeSurface)
    assert flat.knee_units == 80


def test_each_process_of_arrivals_can_be_described(tmp_path: Path) -> None:
    assert arrivals('{ process = "uniform", rate_per_s = 3 }') == Uniform(3)
    assert arrivals('{ process = "poisson", rate_per_s = 3 }') == Poisson(3)
    assert arrivals('{ process = "bursty", rates_per_s = [1, 9], stay_s = [2, 1] }') == Bursty((1, 9), (2, 1))
    assert arrivals('{ process = "closed_loop", clients = 3, think_s = 0.5 }') == ClosedLoop(3, 500_000_000)
    (tmp_path / "counts.csv").write_text("second, requests\n0, 3\n1, 0\n2, 5\n")
    trace = '{ process = "trace", file = "counts.csv", counts = "requests", bin_s = 2 }'
    assert arrivals(trace, tmp_path) == Counts((3, 0, 5), 2_000_000_000)
    (tmp_path / "times.csv").write_text("ms,who\n1500,b\n1000,a\n")
    trace = '{ process = "trace", file = "times.csv", timestamps = "ms", unit_s = 0.001 }'
    times = arrivals(trace, tmp_path)
    assert isinstance(times, Timestamps)
    assert list(times.times) == [0, 500_000_000]


def test_traces_in_parquet_are_read_with_numbers_and_with_dates(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    when = np.array(["2024-01-01T00:00:01", "2024-01-01T00:00:00.5"], "datetime64[ms]")
    columns = pyarrow.table({"n": [2, 4], "t": [1.5, 0.5], "when": when})
    parquet.write_table(columns, tmp_path / "t.parquet")
    assert arrivals('{ process = "trace", file = "t.parquet", counts = "n" }', tmp_path) == Counts((2, 4))
    for column, expected in (("t", 10**9), ("when", 5 * 10**8)):
        trace = f'{{ process = "trace", file = "t.parquet", timestamps = "{column}" }}'
        assert list(arrivals(trace, tmp_path).times) == [0, expected]


def test_a_missing_date_in_parquet_is_told(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    when = np.array(["2024-01-01T00:00:01", "NaT"], "datetime64[ms]")
    parquet.write_table(pyarrow.table({"when": when}), tmp_path / "t.parquet")
    with pytest.raises(ConfigError, match=r"holds nan; give numbers only"):
        arrivals('{ process = "trace", file = "t.parquet", timestamps = "when" }', tmp_path)


def test_a_scaled_workload_has_so_many_times_the_requests() -> None:
    twice = parse(DEVICE + MODEL).scaled(2)
    assert twice.loads[0].arrivals == Poisson(20)
    assert twice.loads[0].model.rate_per_s == 20
    rng = np.random.default_rng(1)
    for process in (Uniform(10), Bursty((10,), (1,)), Timestamps([0, 10**9, 2 * 10**9]), Counts([4, 4])):
        count = len(process.scaled(0.5).times_ns(rng, 2 * 10**9))
        assert count < len(process.times_ns(rng, 2 * 10**9))
    assert ClosedLoop(1).scaled(0.1) == ClosedLoop(1)
    with pytest.raises(InvalidRequest, match="load is 0"):
        twice.scaled(0)


TRACE = '{ process = "trace", file = "t.csv", counts = "n" }'
BAD = {
    "unknown key": (DEVICE + MODEL + "[simulation]\nduration = 3\n", "simulation.duration", "did you mean duration_s"),
    "unknown table": (DEVICE + MODEL + "[models]\n", "models", "did you mean model"),
    "no device": (MODEL, "device", "[[device]]"),
    "no model": (DEVICE, "model", "[[model]]"),
    "no name": (DEVICE + "[[model]]\nslo_ms = 5\n", "model[0].name", "missing"),
    "no SLO": (DEVICE + '[[model]]\nname = "resnet50"\nrate_per_s = 1\n', "model[0].slo_ms", "missing"),
    "no arrivals": (DEVICE + '[[model]]\nname = "resnet50"\nslo_ms = 50\n', "model[0].rate_per_s", "missing"),
    "negative rate": (DEVICE + MODEL.replace("10", "-10"), "model[0].rate_per_s", "from 0 to 1,000,000,000"),
    "infinite rate": (DEVICE + MODEL.replace("10", "inf"), "model[0].rate_per_s", "from 0"),
    "rate no number": (DEVICE + MODEL.replace("10", '"10"'), "model[0].rate_per_s", "give a number"),
    "rate nan": (DEVICE + MODEL.replace("10", "nan"), "model[0].rate_per_s", "give a number"),
    "SLO zero": (DEVICE + MODEL.replace("50\n", "0\n"), "model[0].slo_ms", "more than 0"),
    "SLO too short": (DEVICE + MODEL.replace("50\nrate", "2\nrate"), "model[0].slo_ms", "fastest possible run"),
    "twice the name": (DEVICE + MODEL + MODEL, "model[1].name", "another model"),
    "copies collide": (DEVICE + MODEL.replace('50"', '50-0"\ntable="resnet50"') + MODEL + "copies=2", "model[1].name",
                       "another model"),
    "copies": (DEVICE + MODEL + "copies = 1000000\n", "model[0].copies", "from 1 to 20,000"),
    "copies together": (DEVICE + MODEL + "copies = 15000\n" + MODEL.replace('50"', '50b"\ntable="resnet50"')
                        + "copies = 5001\n", "model[1].copies", "20,001 models with those before; give at most 20,000"),
    "weight": (DEVICE + MODEL + "weight = 0\n", "model[0].weight", "from 1"),
    "items": (DEVICE + MODEL + "items = 0\n", "model[0].items", "from 1"),
    "memory": (DEVICE + MODEL + 'memory = "much"\n', "model[0].memory", "512MiB"),
    "unknown model": (DEVICE + MODEL.replace("resnet50", "resnet51"), "model[0].table", "measured were: "),
    "unknown kind": ('[[device]]\nkind = "v101"\n' + MODEL, "model[0].table", "give one of v100"),
    "not measured": ('[[device]]\nkind = "t4"\n' + MODEL, "model[0].table", "was not measured on t4"),
    "framework": (DEVICE + MODEL + 'framework = "Caffe"\n', "model[0].table", "TensorRT"),
    "assume": (DEVICE + MODEL + 'assume = "round"\n', "model[0].assume", "measured or flat"),
    "estimate": ('[[device]]\nkind = "t4"\nestimate_from = "k80"\n' + MODEL, "device[0].estimate_from", "v100"),
    "share over": (DEVICE + "shares = [50, 120]\n" + MODEL, "device[0].shares", "120 is outside 1 to 100"),
    "share zero": (DEVICE + "shares = [0]\n" + MODEL, "device[0].shares", "0 is outside 1 to 100"),
    "shares order": (DEVICE + "shares = [50, 20]\n" + MODEL, "device[0].shares", "ascending"),
    "no shares": (DEVICE + "shares = []\n" + MODEL, "device[0].shares", "ascending"),
    "count": (DEVICE + "count = 0\n" + MODEL, "device[0].count", "from 1"),
    "units": (DEVICE + "units = 0\n" + MODEL, "device[0].units", "from 1"),
    "power": (DEVICE + "idle_w = 9\nbusy_w = 3\n" + MODEL, "device[0].busy_w", "from 9"),
    "surface share over": (DEVICE + OWN.replace("100]", "101]"), "model[0].surface[0].share", "101 is outside"),
    "surface shape": (DEVICE + OWN.replace(", [2, 4]]", "]"), "model[0].surface[0].latency_ms", "2 rows of 2"),
    "surface time": (DEVICE + OWN.replace("[2, 4]", "[0, 4]"), "model[0].surface[0].latency_ms[1]", "not a number"),
    "surface text": (DEVICE + OWN.replace("[[4, 8], [2, 4]]", '"fast"'), "model[0].surface[0].latency_ms", "list"),
    "surface kind": (DEVICE + OWN.replace("{ share", '{ kind = "a100", share'), "model[0].surface[0].kind", "v100"),
    "surface twice": (DEVICE + OWN.replace(ROW, f"{ROW}, {ROW}"), "model[0].surface[1].kind", "already"),
    "both arrivals": (DEVICE + MODEL + 'arrivals = { process = "poisson", rate_per_s = 1 }\n', "model[0].rate_per_s",
                      "leave one"),
    "process": (DEVICE + OWN.replace("rate_per_s = 10", 'arrivals = { process = "pareto" }'),
                "model[0].arrivals.process", "uniform"),
    "other process's key": (DEVICE + OWN.replace("rate_per_s = 10", 'arrivals = { process = "poisson", clients = 3 }'),
                            "model[0].arrivals.clients", "unknown"),
    "bursty lengths": (DEVICE + OWN.replace("rate_per_s = 10", "arrivals = { process = 'bursty', rates_per_s = [1],"
                                            " stay_s = [1, 2] }"), "model[0].arrivals.stay_s", "one time for each"),
    "bursty negative": (DEVICE + OWN.replace("rate_per_s = 10", "arrivals = { process = 'bursty', rates_per_s = [-1],"
                                             " stay_s = [1] }"), "model[0].arrivals.rates_per_s", "-1"),
    "clients": (DEVICE + OWN.replace("rate_per_s = 10", "arrivals = { process = 'closed_loop', clients = 0 }"),
                "model[0].arrivals.clients", "from 1"),
    "duration": (DEVICE + MODEL + "[simulation]\nduration_s = 0\n", "simulation.duration_s", "from 0.001"),
    "warm-up": (DEVICE + MODEL + "[simulation]\nwarmup_s = 10\n", "simulation.warmup_s", "less than duration_s"),
    "seed": (DEVICE + MODEL + "[simulation]\nseed = -1\n", "simulation.seed", "0 or more"),
    "noise": (DEVICE + MODEL + "[simulation]\nnoise = -0.1\n", "simulation.noise", "from 0"),
    "policy": (DEVICE + MODEL + '[simulation]\npolicies = ["fifo"]\n', "simulation.policies", "unscheduled"),
    "policy option": (DEVICE + MODEL + '[simulation]\npolicies = ["unscheduled=3"]\n', "simulation.policies", "option"),
    "slow model": (DEVICE + MODEL + '[[slowdown]]\nmodel = "x"\nfactor = 2\n', "slowdown[0].model", "resnet50"),
    "slow factor": (DEVICE + MODEL + '[[slowdown]]\nmodel = "resnet50"\nfactor = 0\n', "slowdown[0].factor", "0.001"),
    "slow time": (DEVICE + MODEL + '[[slowdown]]\nmodel = "resnet50"\nfactor = 2\nfrom_s = 2\nto_s = 1\n',
                  "slowdown[0].to_s", "2 or more"),
    "sensitivity": (DEVICE + MODEL + "sensitivity = -1\n", "model[0].sensitivity", "from 0"),
    "profile without store": ('[[device]]\nprofile = "cpu"\n' + MODEL, "device[0].profile", "--store"),
    "profile and kind": (DEVICE + 'profile = "cpu"\n' + MODEL, "device[0].kind", "leave one"),
    "cost": (DEVICE + "cost = 0\n" + MODEL, "device[0].cost", "from"),
    "known": (DEVICE + MODEL + "known = 1\n", "model[0].known", "true or false"),
    "back too early": (DEVICE + MODEL + '[[loss]]\ndevice = "v100:0"\nat_s = 2\nback_s = 1\n',
                       "loss[0].back_s", "from 2"),
    "lost device": (DEVICE + MODEL + '[[loss]]\ndevice = "v100:1"\nat_s = 1\n', "loss[0].device", "v100:0"),
}  # fmt: skip


def test_ten_thousand_models_are_read() -> None:
    assert len(parse(DEVICE + MODEL + "copies = 10000\n").loads) == 10_000


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_told_with_file_key_and_remedy(what: str) -> None:
    text, key, remedy = BAD[what]
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert caught.value.file == "w.toml"
    assert caught.value.key == key, str(caught.value)
    assert remedy in caught.value.remedy, str(caught.value)


@pytest.mark.parametrize(
    ("content", "column", "remedy"),
    [
        ("", "counts = 'n'", "it has none"),
        ("n\n", "counts = 'n'", "empty"),
        ("n\n", "timestamps = 'n'", "empty"),
        ("m,k\n1,2\n", "counts = 'n'", "it has m, k"),
        ("n\n1\nmany\n", "counts = 'n'", "numbers only"),
        ("n\n1\n-3\n", "counts = 'n'", "-3 is not a whole number"),
        ("n\n1.5\n", "counts = 'n'", "1.5 is not a whole number"),
        ("n\nnan\n", "timestamps = 'n'", "nan"),
        ("k,n\n1,2\n3\n", "counts = 'n'", "line 3 has 1 values, '3'; give 2"),
        ("k,n\n1,2\n3,4,5\n", "counts = 'n'", "line 3 has 3 values, '3, 4, 5'; give 2"),
        ("n\n1\n\n2\n", "counts = 'n'", "line 3 is empty; remove it or give a value"),
        ("n\n\n\n2\n", "timestamps = 'n'", "line 2 is empty"),
        ('n\n1\n""\n2\n', "counts = 'n'", "line 3 is empty"),
        ("k,n\n1,2\n3,\n", "counts = 'n'", "line 3 holds ''; give numbers only"),
        ("n\n1\nmany\n", "counts = 'n'", "line 3 holds 'many'"),
        ("n\n1\ninf\n", "counts = 'n'", "line 3 holds 'inf'"),
        ('n\n"1" 2\n', "counts = 'n'", "is no CSV"),
        ("n\n1e12\n", "counts = 'n'", "at most"),
        ("n\n0\n0\n", "counts = 'n'", "the trace is empty"),
        ("n,n\n1,2\n", "counts = 'n'", "several columns are named 'n'"),
        ("n\n0\n1e30\n", "timestamps = 'n'", "1e+30 s after the first"),
        ("n\n1\n", "counts = 'n', bin_s = 0", "from 0.001"),
        ("n\n1\n", "counts = 'n', timestamps = 'n'", "name its column"),
        ("n\n1\n", "", "name its column"),
    ],
)
def test_a_bad_trace_is_told_with_what_is_wrong_in_it(
    tmp_path: Path, content: str, column: str, remedy: str
) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(ConfigError) as caught:
        arrivals(f"{{ process = 'trace', file = 't.csv'{', ' if column else ''}{column} }}", tmp_path)
    assert remedy in caught.value.remedy, str(caught.value)
    assert caught.value.key.startswith("model[0].arrivals.")


def test_empty_lines_at_the_end_of_a_trace_are_no_values(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("n\n3\n5\n\n\n")
    assert arrivals(TRACE, tmp_path) == Counts((3, 5), 10**9)


def test_a_column_name_given_twice_is_not_told_as_a_file_that_is_no_csv(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("n,n\n1,2\n")
    with pytest.raises(ConfigError, match="name each differently") as caught:
        arrivals(TRACE, tmp_path)
    assert "is no CSV" not in str(caught.value)


def test_a_trace_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    for name, content in (
        ("missing.csv", None),
        ("binary.csv", b"\xff\xfe\x00"),
        ("bad.parquet", b"PAR1 no"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=name):
            arrivals(f"{{ process = 'trace', file = '{name}', counts = 'n' }}", tmp_path)


def test_a_file_that_is_missing_or_no_toml_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_workload(tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("[[device]\n")
    with pytest.raises(ConfigError, match="no TOML"):
        read_workload(bad)
    bad.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="no TOML"):
        read_workload(bad)


def test_models_that_disturb_each_other_are_read() -> None:
    other = OWN + "pressure = 2\n"
    workload = parse(DEVICE + MODEL + "sensitivity = 0.5\n" + other)
    found = workload.scenario().interference
    assert found.slowdown("resnet50", [("mine", 0.5)]) == 1.5
    assert found.slowdown("mine", [("resnet50", 0.5)]) == 1.0
    assert parse(DEVICE + MODEL + OWN).interference is NO_INTERFERENCE


def test_other_devices_than_the_models_run_on_are_refused() -> None:
    own = OWN.replace("{ share", '{ kind = "v100", share')
    workload = parse('[[device]]\nkind = "t4"\n' + DEVICE + own)
    with pytest.raises(InvalidRequest, match="mine does not run on t4"):
        workload.scenario(devices=4)
