"""``polymux profile forget``: remove profiles from the store."""

from __future__ import annotations

import argparse

from polymux.cli.profile_store import add_store_option, store_path
from polymux.profiles import ProfileStore


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "profile forget",
        help="remove a model's profiles from the store",
        description="Remove a model with everything that was measured of it.",
    )
    parser.add_argument("model", metavar="MODEL", help="its name, or the beginning of its key")
    add_store_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Remove it."""
    with ProfileStore(store_path(options), write=True) as store:
        model = store.find_model(options.model)
        store.forget(model.key)
    print(f"removed {model.name} ({model.key.removeprefix('sha256:')[:12]})")
    return 0
