"""``polymux profile show``: what the profile store holds, and what follows from it."""

from __future__ import annotations

import argparse
from pathlib import Path

from polymux.cli.connection import add_json_option, print_json
from polymux.cli.profile_store import add_store_option, store_path
from polymux.cli.profile_tables import print_list, print_profile
from polymux.cli.text import terminal
from polymux.core.errors import ConfigError
from polymux.profiles import DeviceIdentity, ProfiledModel, ProfileStore
from polymux.profiling.summary import Demand, Summary, summarize


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "profile show",
        help="show what was measured: table, knees, optimum, bound, picture",
        description="List the profiles of the store; with MODEL, show its profile: the table of latencies, the knees by"
        " three definitions, the optimum, and whether memory or arithmetic bounds it.",
    )
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="its name, its file, or the beginning of its key"
    )
    add_store_option(parser)
    add_json_option(parser)
    parser.add_argument("--device", metavar="KEY", help="only this device, by the beginning of its key")
    parser.add_argument(
        "--slo-ms", metavar="MS", type=_positive, help="with --rate: the optimum under this deadline"
    )
    parser.add_argument("--rate", metavar="N", type=_positive, help="requests per second")
    parser.add_argument(
        "--picture",
        metavar="FILE",
        type=Path,
        help="draw latency over the share and the efficacy of every place: .png, .svg or .pdf",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print what is in the store."""
    if (options.slo_ms is None) != (options.rate is None):
        remedy = "give --slo-ms and --rate together"
        raise ConfigError("command line", "--slo-ms, --rate", f"{options.slo_ms}, {options.rate}", remedy)
    with ProfileStore(store_path(options)) as store:
        if options.model is None:
            if options.picture is not None or options.slo_ms is not None or options.device is not None:
                remedy = "name the model to show; without one the profiles are listed"
                raise ConfigError("command line", "MODEL", "none", remedy)
            _list(store, options.json)
        else:
            _show(store, options)
    return 0


def _list(store: ProfileStore, as_json: bool) -> None:
    if not as_json:
        print_list(store, terminal())
        return
    models, devices = {model.key: model for model in store.models()}, store.devices()
    print_json(
        [
            {
                "model": models[model].name,
                "key": model,
                "device": device,
                "description": str(devices[device]),
                "missing": len(store.missing(model, device)),
            }
            for model, device in store.profiles()
        ]
    )


def _show(store: ProfileStore, options: argparse.Namespace) -> None:
    model = _model(store, options.model)
    demand = None if options.slo_ms is None else Demand(round(options.slo_ms * 1e6), options.rate)
    summaries = [
        summary
        for device in _devices(store, model, options.device)
        if (summary := summarize(store, model, device, demand)) is not None
    ]
    if options.json:
        print_json([summary.to_json() for summary in summaries])
    else:
        console = terminal()
        for number, summary in enumerate(summaries):
            if number:
                console.print()
            print_profile(summary, console)
    if options.picture is not None:
        _draw(summaries, options.picture)


def _model(store: ProfileStore, name: str) -> ProfiledModel:
    if Path(name).is_file():
        from polymux.profiles import model_key

        name = model_key(name)
    return store.find_model(name)


def _devices(store: ProfileStore, model: ProfiledModel, wanted: str | None) -> list[DeviceIdentity]:
    profiled = {
        key: device for key, device in store.devices().items() if (model.key, key) in store.profiles()
    }
    found = [device for key, device in profiled.items() if key.startswith(wanted or "")]
    if not found:
        remedy = f"{model.name} was profiled on {', '.join(sorted(profiled)) or 'none'}"
        raise ConfigError(str(store.path), "device", wanted or "none", remedy)
    return found


def _draw(summaries: list[Summary], path: Path) -> None:
    if len(summaries) != 1:
        keys = ", ".join(summary.device.key for summary in summaries)
        remedy = f"a picture shows one profile; choose with --device: {keys}"
        raise ConfigError("command line", "--picture", str(path), remedy)
    try:
        from polymux.profiling.picture import draw  # only now: it loads matplotlib
    except ModuleNotFoundError as error:
        remedy = f"needs the package {error.name}: pip install 'polymux[profile]'"
        raise ConfigError("command line", "--picture", str(path), remedy) from error
    draw(summaries[0], path)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e12:
        raise argparse.ArgumentTypeError(f"{text}: give more than 0")
    return value
