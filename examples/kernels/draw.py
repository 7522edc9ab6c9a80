"""Draws the Mandelbrot set with the kernel of this folder.

polymux up --kernels kernels.py --kernels kernels.toml &
python draw.py              wherever the server likes
python draw.py opencl:0     on a device of your choice
"""

from __future__ import annotations

import sys

import polymux

SHADES = " .:-=+*#%@"


def main(device: str | None = None) -> None:
    with polymux.connect(name="mandelbrot") as client, client.queue(device=device) as queue:
        image = queue.empty((71, 96), "i4")
        queue.submit("mandelbrot", [], [image], left=-2.2, top=-1.2, step=0.034, limit=200).wait(timeout=60)
        # A character is twice as high as wide: every second row.
        for row in image.numpy()[::2]:
            print("".join(SHADES[min(int(count), 199) * len(SHADES) // 200] for count in row))


if __name__ == "__main__":
    main(*sys.argv[1:2])
