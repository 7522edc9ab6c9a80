"""``polymux coexec``: how one operation would be split over the units of a machine, in virtual time."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

from polymux.cli.text import terminal
from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.adapt import Plan, adapt
from polymux.perfmodel.coexec.optimize import optimize
from polymux.perfmodel.coexec.pareto import pareto
from polymux.perfmodel.coexec.planner import Planner
from polymux.perfmodel.coexec.problem import Objective
from polymux.perfmodel.coexec.split import value_of
from polymux.planning import coexec_picture
from polymux.planning.coexec_file import read_coexec
from polymux.planning.coexec_report import print_frontier, print_report, results
from polymux.sim.coexec.scenario import CoexecScenario, Failure, SpeedChange
from polymux.sim.coexec.simulation import simulate

_EXAMPLE = """\
  polymux coexec examples/coexec/paper.toml --pareto --picture split.png
  polymux coexec MACHINE.toml --objective energy
  polymux coexec MACHINE.toml --slow gpu:0=2@40        # half as fast from 40 ms on
  polymux coexec MACHINE.toml --slow gpu:0=2@40 --no-steal

Nothing is measured: rates, links and powers are those of the file. docs/simulation.md describes it.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "coexec",
        help="how one operation would be split over the devices of a machine, in virtual time",
        description="Predict, split and simulate one operation on several devices at once: the planner and the"
        " dispatcher that run live, with a machine from a file.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("machine", metavar="MACHINE.toml", type=Path, help="the operation and the units")
    parser.add_argument(
        "--objective", metavar="time|energy|TIME,ENERGY",
        help="what is to become least, instead of the file's: one of both, or weights of seconds and joules",
    )  # fmt: skip
    parser.add_argument(
        "--slow", action="append", default=[], metavar="DEVICE=FACTOR@MS",
        help="a device becomes so many times slower at that time; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--fail",
        action="append",
        default=[],
        metavar="UNIT@MS",
        help="a unit fails at that time; may be repeated",
    )
    parser.add_argument("--no-steal", action="store_true", help="units do not take over from others")
    parser.add_argument(
        "--solver",
        choices=("closed", "milp"),
        default="closed",
        help="how the split is found (default: %(default)s)",
    )
    parser.add_argument(
        "--pareto", action="store_true", help="also the plans from the fastest to the thriftiest"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE.png", help="draw who did what when")
    parser.add_argument("--json", action="store_true", help="print only the results, as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Plan, simulate, and print or draw what was asked for."""
    file = read_coexec(options.machine)
    scenario = replace(
        file.scenario,
        objective=_objective(options.objective) or file.scenario.objective,
        changes=(*file.scenario.changes, *map(_change, options.slow)),
        failures=(*file.scenario.failures, *map(_failure, options.fail)),
        steal=not options.no_steal,
    )
    file = replace(file, scenario=scenario)
    if options.picture is not None and not options.picture.parent.is_dir():
        raise InvalidRequest(f"{options.picture}: there is no folder {options.picture.parent}; make it first")
    plan = _plan(scenario, options.solver)
    began = time.perf_counter()
    _plan(scenario, options.solver)  # once more: the first time loads libraries
    plan_s = time.perf_counter() - began
    outcome = simulate(scenario, plan)
    frontier = pareto(scenario.problems, scenario.units) if options.pareto else ()
    if options.picture is not None:
        coexec_picture.draw(options.picture, file.title, outcome, frontier)
    if options.json:
        print(json.dumps(results(file, outcome, frontier, plan_s)))
        return 0
    console = terminal()
    print_report(console, file, outcome, plan_s)
    if frontier:
        print_frontier(console, frontier)
    if options.picture is not None:
        print(f"\nwrote {options.picture}")
    return 0


def _plan(scenario: CoexecScenario, solver: str) -> Plan:
    if solver == "closed":
        return Planner(scenario.units).plan(scenario.problems, scenario.objective)
    plans = [
        adapt(optimize(problem, scenario.units, scenario.objective, solver="milp"), scenario.units)
        for problem in scenario.problems
    ]
    return min(plans, key=lambda plan: value_of(scenario.objective, plan.predicted_s, plan.energy_j))


def _objective(text: str | None) -> Objective | None:
    if text is None or text in ("time", "energy"):
        return None if text is None else Objective.parse(text)
    try:
        time_weight, energy_weight = map(float, text.split(","))
    except ValueError:
        raise InvalidRequest(
            f"--objective {text}: give time, energy, or two weights such as 1,0.01"
        ) from None
    return Objective(time_weight, energy_weight)


def _change(text: str) -> SpeedChange:
    device, _, rest = text.rpartition("=")
    factor, _, at_ms = rest.partition("@")
    try:
        return SpeedChange(device, float(at_ms) * 1e-3, float(factor))
    except ValueError as error:
        raise InvalidRequest(f"--slow {text}: give DEVICE=FACTOR@MS, such as gpu:0=2@40") from error


def _failure(text: str) -> Failure:
    unit, _, at_ms = text.rpartition("@")
    try:
        return Failure(unit, float(at_ms) * 1e-3)
    except ValueError as error:
        raise InvalidRequest(f"--fail {text}: give UNIT@MS, such as gpu:0/cuda@40") from error
