"""Aligns two related proteins on the accelerators of this machine, and prints a piece of the alignment.

python needleman_wunsch.py --size 64MiB
python needleman_wunsch.py --queues 2 --letters 240

The application is `polymux.apps.needleman_wunsch`: it submits its tasks to one queue or several, and never asks where
they run.
"""

from __future__ import annotations

import argparse
import sys

from polymux.apps.application import Arrays
from polymux.apps.command import main, parser_of
from polymux.apps.needleman_wunsch import NeedlemanWunsch, aligned_text, related_sequences_of_size

LINE = 80


def show(arguments: argparse.Namespace, result: Arrays) -> None:
    first, second = related_sequences_of_size(arguments.size, arguments.seed)
    print(
        f"{len(first)} and {len(second)} amino acids; the alignment scores {result['scores'][-1]}. It begins:"
    )
    for begin in range(0, min(arguments.letters, len(result["alignment"]) - 1), LINE):
        print()
        print(aligned_text(result, first, second, begin, min(begin + LINE, arguments.letters)))


if __name__ == "__main__":
    parser = parser_of(NeedlemanWunsch)
    parser.add_argument(
        "--letters",
        type=int,
        default=160,
        metavar="N",
        help="of the alignment that are printed (default: 160)",
    )
    sys.exit(main(NeedlemanWunsch, parser=parser, show=show))
