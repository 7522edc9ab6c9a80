"""Print how C and C++ programs are built against Polymux: ``python -m polymux.segment --cflags --libs``."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path


def main() -> None:
    """Print the options asked for on one line."""
    package = Path(__file__).resolve().parents[1]
    include, library = package / "include", package / "lib"
    parser = argparse.ArgumentParser(
        prog="python -m polymux.segment",
        description="Print the compiler and linker options of C and C++ programs that use polymux.h.",
    )
    parser.add_argument("--cflags", action="store_true", help="options that find polymux.h")
    parser.add_argument(
        "--libs", action="store_true", help="options that link libpolymux.so and find it at run time"
    )
    options = parser.parse_args()
    if not (options.cflags or options.libs):
        parser.error("give --cflags, --libs or both")
    if not (include / "polymux.h").is_file() or not (library / "libpolymux.so").is_file():
        sys.exit(f"{package} has no header or no library; build them with `make build`")
    flags = [f"-I{include}"] if options.cflags else []
    if options.libs:
        flags += [f"-L{library}", f"-Wl,-rpath,{library}", "-lpolymux"]
    print(shlex.join(flags))


if __name__ == "__main__":
    main()
