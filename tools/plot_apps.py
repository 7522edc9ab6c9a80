"""Draws what `polymux bench apps --json` has found, for docs/applications.md.

polymux bench apps --json > apps.json
python tools/plot_apps.py apps.json docs/images/apps.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

TARGET = 1.05
COLOURS = {"cpu": "#2f6fab", "opencl": "#d1803b"}
_SHADES = (1.0, 0.7, 0.45, 0.3)


def main() -> None:
    """Read the results and write the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="the JSON that the benchmark has printed")
    parser.add_argument("picture", type=Path, help="the file to write, such as apps.png")
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text())
    names = list(dict.fromkeys(item["app"] for item in results))
    single = [item for item in results if item["setup"].endswith(", 1 queue")]
    several = [item for item in results if item not in single]
    figure = Figure(figsize=(9, 6.4), layout="constrained")
    above, below = figure.subplots(2)
    labels = list(dict.fromkeys((item["api"], item["nbytes"]) for item in single))
    _bars(above, names, labels, {(i["app"], (i["api"], i["nbytes"])): i["ratio"] for i in single})
    above.axhline(TARGET, color="#888888", linewidth=1, linestyle="--")
    above.set_title(
        "Through Polymux over the same kernels called directly, one queue (dashed: 1.05)", loc="left"
    )
    setups = list(dict.fromkeys((item["api"], item["setup"]) for item in several))
    _bars(below, names, setups, {(i["app"], (i["api"], i["setup"])): i["ratio"] for i in several})
    below.axhline(1.0, color="#888888", linewidth=1)
    below.set_title("Over several queues, against one native run on the device (below 1: a gain)", loc="left")
    figure.savefig(arguments.picture, dpi=130)


def _bars(
    axes: Axes, names: list[str], kinds: list[tuple[str, Any]], ratios: dict[tuple[str, Any], float]
) -> None:
    width = 0.85 / max(len(kinds), 1)
    seen = dict.fromkeys(COLOURS, 0)
    for index, kind in enumerate(kinds):
        api, what = kind
        label = what if isinstance(what, str) else f"{api}, {what / (1 << 20):g} MiB"
        places = [at + (index - (len(kinds) - 1) / 2) * width for at in range(len(names))]
        heights = [ratios.get((name, kind), 0.0) for name in names]
        shade = _SHADES[seen[api] % len(_SHADES)]
        hatch = "//" if seen[api] >= len(_SHADES) else None
        axes.bar(places, heights, width * 0.9, label=label, color=COLOURS[api], alpha=shade, hatch=hatch)
        seen[api] += 1
    axes.set_xticks(range(len(names)), [name.replace("-", "-\n") for name in names])
    axes.set_ylabel("ratio")
    axes.set_ylim(0, min(4.0, 1.15 * max([*ratios.values(), 1.2])))
    axes.legend(fontsize=7, ncols=2, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


if __name__ == "__main__":
    main()
