"""The benchmark ``polymux bench coexec``."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from polymux.bench.coexec.cell import IDEAL_TARGET, PLAN_TARGET, PREDICTION_TARGET, Budget, measure, verdicts
from polymux.bench.coexec.loaded import LOADED_TARGET, measure_loaded
from polymux.bench.coexec.machine import pairs, serving
from polymux.bench.coexec.shapes import Case, cases, product
from polymux.bench.cores import choose_cores
from polymux.bench.effort import Effort
from polymux.bench.report import Progress, Report, Row
from polymux.client import Client
from polymux.coexec import Session
from polymux.profiles import ProfileStore
from polymux.profiling.coexec.calibrate import calibrate
from polymux.profiling.coexec.records import CalibrationOptions

SEGMENT_NBYTES = 6 << 30
_FULL, _QUICK = Budget(5, 3.0, 40), Budget(2, 0.0, 2)
_LOADED_EDGE = 4096


def run(effort: Effort, progress: Progress) -> Report:
    """Measure all rows."""
    quick = effort.rounds <= 2
    chosen = cases(quick)
    with (
        tempfile.TemporaryDirectory(prefix="polymux-bench-") as folder,
        serving() as server,
        Client(server.socket, name="coexec", segment_nbytes=SEGMENT_NBYTES) as client,
    ):
        store = Path(folder) / "profiles.db"
        if not quick:
            with ProfileStore(store, write=True) as opened:
                for found in calibrate(client, opened, CalibrationOptions(), pids=[server.pid]):
                    progress(f"calibrated {found.kernel} on {found.place.stream}")
        with Session(client, store=store) as session:
            rows = measure_all(session, chosen, _QUICK if quick else _FULL, progress)
            loaded = [] if quick else _loaded(session, progress)
    return report(rows, loaded)


def measure_all(
    session: Session, chosen: Sequence[Case], budget: Budget, progress: Progress
) -> list[dict[str, Any]]:
    """Measure cases on every pair of the machine."""
    rows = []
    for case in chosen:
        for pair in pairs(session, case.operation):
            progress(f"{case.operation.name} {case.label}, {pair.name}")
            rows.append(measure(session, case, pair, budget))
    return rows


def _loaded(session: Session, progress: Progress) -> list[dict[str, Any]]:
    case = product(_LOADED_EDGE, _LOADED_EDGE, _LOADED_EDGE)
    rows = []
    for pair in pairs(session, case.operation):
        progress(f"{pair.name}, one core loaded")
        rows.append(measure_loaded(session, case, pair, choose_cores().client, 5))
    return rows


def report(rows: Sequence[dict[str, Any]], loaded: Sequence[dict[str, Any]] = ()) -> Report:
    """Put the results together."""
    told = [verdicts(row) for row in rows]
    errors = [abs(row["predicted_s"] - row["coexec_s"]) / row["coexec_s"] for row in rows]
    mape_pct = 100 * sum(errors) / max(len(errors), 1)

    def met(name: str) -> tuple[int, int]:
        of = [verdict[name] for verdict in told if name in verdict]
        return sum(of), len(of)

    lines = []
    for name, metric, target in (
        ("ideal", "large cases near the ideal", f"<= {IDEAL_TARGET} x ideal"),
        ("single", "never slower than the best single unit", "all"),
        ("prediction", "predicted within the target", f"within {100 * PREDICTION_TARGET:g} %"),
        ("plan", "planning", f"<= {100 * PLAN_TARGET:g} % of the run"),
    ):
        reached, of = met(name)
        lines.append(Row(metric, reached, f"of {of}", None, "", target, reached == of))
    lines.append(Row("mean error of the prediction", mape_pct, "%", None, "", "< 3 %", mape_pct < 3))
    lines += [
        Row(
            f"{row['devices']}, {row['shape']}",
            row["coexec_s"] * 1e3,
            "ms",
            row["possible_s"] * 1e3,
            "possible",
            f"<= {LOADED_TARGET} x possible",
            row["ratio"] <= LOADED_TARGET,
        )
        for row in loaded
    ]
    return Report(
        "coexec",
        "one operation on two units at once, against each alone and the ideal",
        tuple(lines),
        {"mape_pct": mape_pct, "rows": list(rows), "loaded": list(loaded)},
        (
            "arrays in shared memory; each unit alone and both take turns, medians of the rounds",
            "ideal: the work over the sum of the rates that were measured alone; one core each",
            "loaded: another process has the first unit's core for the first half of the run; possible: what the rates",
            "allow in the time that it left",
        ),
        (_table(rows, told),),
    )


def _table(rows: Sequence[dict[str, Any]], told: Sequence[dict[str, bool]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("operation", "units"):
        table.add_column(heading, no_wrap=True)
    for heading in ("best alone", "together", "/ alone", "/ ideal", "predicted", "planned in"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("missed", no_wrap=True, style="red")
    for row, verdict in zip(rows, told, strict=True):
        both_s = row["coexec_s"]
        table.add_row(
            f"{row['op']} {row['shape']}",
            row["devices"] if row["units_used"] > 1 else f"{row['devices']} (one used)",
            f"{row['single_best_s'] * 1e3:,.2f} ms",
            f"{both_s * 1e3:,.2f} ms",
            f"{both_s / row['single_best_s']:.2f}",
            f"{both_s / row['ideal_s']:.3f}",
            f"{100 * (row['predicted_s'] / both_s - 1):+.1f} %",
            f"{row['plan_s'] * 1e6:,.0f} us",
            ", ".join(name for name, ok in verdict.items() if not ok),
        )
    return table
