"""``polymux partition``: where a model can be cut into parts, how long these take, and what the cuts cost."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from polymux.cli.connection import add_json_option, print_json
from polymux.cli.profile_models import find_models, shape_option, values_option
from polymux.cli.text import duration, size, table, terminal
from polymux.core.errors import ConfigError
from polymux.device.cores import allowed_cores
from polymux.onnxgraph.file import load_model
from polymux.onnxgraph.inputs import ItemInput, batch_of, item_inputs
from polymux.onnxgraph.partition.choose import OVERHEAD, Wish
from polymux.onnxgraph.partition.comparison import Cost, InParts, Whole, compare_cost
from polymux.onnxgraph.partition.partition import Partition, partition
from polymux.profiling.model import ModelSource
from polymux.profiling.samples import PREFIX, SAMPLES

_EPILOG = f"""\
MODEL is an ONNX file, or {PREFIX}NAME: a real model from an installed package, one of {", ".join(SAMPLES)}.

The model is optimised for this processor first and then cut, where few tensors cross. Without --parts and
--longest-ms it is cut as finely as the cuts cost about {OVERHEAD:.0%} of its time. Parts run one after the other and
give what the whole gives, which is tried; between them more urgent work has its turn. Keep the machine idle meanwhile.

  polymux partition resnet50.onnx                      the default cut
  polymux partition resnet50.onnx --longest-ms 5       as few cuts as it takes for no part to be longer
  polymux partition sample:squeezenet --picture s.png  with a picture of the graph
  polymux serve models --partition resnet50=5ms        serve it so
"""
_BAR = 16


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "partition",
        help="show where a model can be cut into parts, and what that costs",
        description="Cut a model into parts that run one after the other; show the cuts, the times of the parts, what"
        " the cuts add, and whether the results stay the same.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="what to cut, see below")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--parts", metavar="N", type=int, help="cut into so many parts")
    how.add_argument("--longest-ms", metavar="X", type=float, help="no part is to take longer")
    parser.add_argument(
        "--threads", metavar="N", type=int, default=1, help="cores to measure on (default: %(default)s)"
    )
    parser.add_argument(
        "--estimate", action="store_true", help="choose by operations and bytes instead of measured times"
    )
    parser.add_argument(
        "--portable",
        action="store_true",
        help="cut so that other libraries (OpenVINO) can run the parts as well; costs somewhat more",
    )
    parser.add_argument(
        "--shape",
        metavar="NAME=SHAPE",
        action="append",
        type=shape_option,
        default=[],
        help="shape of an input, with N where the batch is: x=Nx3x224x224; may be repeated",
    )
    parser.add_argument(
        "--values",
        metavar="NAME=LOW..HIGH",
        action="append",
        type=values_option,
        default=[],
        help="values of an input (default: 0..1); may be repeated",
    )
    add_json_option(parser)
    parser.add_argument(
        "--picture", metavar="FILE", type=Path, help="draw the graph and its parts: .png, .svg or .pdf"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Cut, measure and print."""
    wish = Wish(options.parts, None if options.longest_ms is None else options.longest_ms * 1e6)
    if not 1 <= options.threads <= len(allowed_cores()):
        remedy = f"give 1 to {len(allowed_cores())}, the cores of this process"
        raise ConfigError("command line", "--threads", options.threads, remedy)
    console = Console(stderr=True, highlight=False)
    with (
        tempfile.TemporaryDirectory(prefix="polymux-partition-") as name,
        console.status("reading") as status,
    ):
        source = _source(options, Path(name))
        inputs = item_inputs(str(source.path), load_model(source.path), source.shapes, source.values)
        folder = Path(name) / "parts"
        folder.mkdir()
        status.update(f"{escape(source.name)}: cutting and measuring")
        found = partition(
            source.path,
            inputs,
            wish,
            folder,
            threads=options.threads,
            estimate=options.estimate,
            portable=options.portable,
        )
        cost = _cost(source, found, inputs, options.threads) if found.parts else None
    if options.json:
        print_json(_to_json(source.name, found, cost, options))
    else:
        _print(source.name, found, cost, options, terminal())
    if options.picture is not None:
        _draw(source.name, found, cost, options.picture)
    return 0


def _source(options: argparse.Namespace, folder: Path) -> ModelSource:
    models, problems = find_models([options.model], dict(options.shape), dict(options.values), None, folder)
    if len(models) != 1 or problems:
        raise ConfigError("command line", "MODEL", options.model, "give one model")
    return models[0]


def _cost(source: ModelSource, found: Partition, inputs: Sequence[ItemInput], threads: int) -> Cost:
    import numpy as np  # only now: other commands start without it

    arrays = batch_of(inputs, 1, np.random.default_rng(0))
    parts = InParts([part.path for part in found.parts], found.flow.outputs, threads, not found.portable)
    return compare_cost(Whole(source.path, threads), parts, arrays)


def _print(
    name: str, found: Partition, cost: Cost | None, options: argparse.Namespace, console: Console
) -> None:
    threads = "1 thread" if options.threads == 1 else f"{options.threads} threads"
    if cost is None:
        console.print(f"{escape(name)} runs whole: {escape(found.why_whole)}", soft_wrap=True)
        return
    columns = ("part", "nodes", "time", "", "operators", "hands on")
    made = table(f"{name}: {len(found.parts)} parts, on {threads}", columns, ("part", "time"))
    longest = max(cost.each_ns)
    for number, (part, time_ns) in enumerate(zip(found.parts, cost.each_ns, strict=True), 1):
        made.add_row(
            str(number),
            f"{part.first + 1}-{part.end}",
            duration(time_ns),
            "█" * max(1, round(_BAR * time_ns / longest)),
            escape(_operators(found, part.first, part.end)),
            escape(_handed_on(found, number - 1)),
        )
    console.print(made)
    console.print()
    console.print(
        f"whole {duration(cost.whole_ns)}, in parts {duration(cost.parts_ns)}: the cuts add {cost.added:+.1%};"
        f" others wait for {duration(longest)} at most",
        soft_wrap=True,
    )
    same = (
        "the same, bit by bit"
        if found.difference == 0
        else f"differ by up to {found.difference:.0e}, relatively"
    )
    console.print(f"results: {same}; {len(found.points)} places could be cut", soft_wrap=True)
    if found.note:
        console.print(escape(found.note), soft_wrap=True)


def _operators(found: Partition, first: int, end: int) -> str:
    counts = Counter(step.op for step in found.flow.steps[first:end])
    common = counts.most_common(3)
    text = ", ".join(f"{op} x {count}" if count > 1 else op for op, count in common)
    return f"{text}, ..." if len(counts) > len(common) else text


def _handed_on(found: Partition, number: int) -> str:
    if number >= len(found.cuts):
        return "the outputs"
    seen = [found.nodes.tensors[name] for name in found.cuts[number].tensors]
    shapes = ", ".join("x".join(map(str, its.shape)) or "scalar" for its in seen)
    return f"{shapes} {seen[0].kind}, {size(sum(its.nbytes for its in seen))}"


def _to_json(name: str, found: Partition, cost: Cost | None, options: argparse.Namespace) -> dict[str, Any]:
    times = cost.each_ns if cost is not None else ()
    return {
        "model": name,
        "threads": options.threads,
        "estimated": options.estimate,
        "portable": found.portable,
        "why_whole": found.why_whole or None,
        "note": found.note or None,
        "nodes": len(found.flow.steps),
        "places": len(found.points),
        "whole_ms": cost.whole_ns / 1e6 if cost is not None else found.total_ns / 1e6,
        "parts_ms": cost.parts_ns / 1e6 if cost is not None else None,
        "added": cost.added if cost is not None else None,
        "longest_ms": max(times) / 1e6 if times else found.total_ns / 1e6,
        "difference": found.difference,
        "parts": [
            {
                "first": part.first,
                "end": part.end,
                "operators": dict(Counter(step.op for step in found.flow.steps[part.first : part.end])),
                "time_ms": time_ns / 1e6,
                "nodes_ms": part.time_ns / 1e6,
                "takes": list(part.inputs),
                "gives": list(part.outputs),
                "carries_nbytes": cut.nbytes if cut is not None else 0,
                "runtimes": ["onnxruntime", *(["openvino"] if part.plain is not None else [])],
            }
            for part, time_ns, cut in zip(found.parts, times, (*found.cuts, None), strict=True)
        ]
        if found.parts
        else [],
    }


def _draw(name: str, found: Partition, cost: Cost | None, path: Path) -> None:
    try:
        from polymux.profiling.partition_picture import draw_partition  # only now: it loads matplotlib
    except ModuleNotFoundError as error:
        remedy = f"needs the package {error.name}: pip install 'polymux[profile]'"
        raise ConfigError("command line", "--picture", str(path), remedy) from error
    draw_partition(name, found, cost, path)
    print(f"picture: {path}", file=sys.stderr)
