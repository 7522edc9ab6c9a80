"""The files that a run leaves: trace, pictures, page."""

from __future__ import annotations

from pathlib import Path

from polymux.demo.failure import DemoFailed
from polymux.demo.heat_picture import draw_heat
from polymux.demo.outcome import Outcome
from polymux.demo.page import write_page
from polymux.demo.picture import DARK, LIGHT, draw
from polymux.demo.timeline import Timeline

__all__ = ["PAGE", "PICTURE", "TRACE", "leave_files", "prepare_folder"]

TRACE = "trace.json"
PICTURE = "timeline.png"
PAGE = "demo.html"


def prepare_folder(folder: Path) -> None:
    """Make the folder; `DemoFailed` when it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / TRACE
        probe.touch()
    except OSError as error:
        raise DemoFailed(
            f"nothing can be written to {folder}: {error.strerror}; name another folder with --out"
        ) from None


def leave_files(
    folder: Path, outcome: Outcome, timeline: Timeline, temperatures: Path
) -> list[tuple[Path, str]]:
    """Draw the pictures and write the page into a folder where the trace is already.

    Returns
    -------
    list of (Path, str)
        The files, each with what it is.
    """
    drawings = temperatures.parent
    timelines = (drawings / "light.svg", drawings / "dark.svg")
    chips = (drawings / "chip-light.svg", drawings / "chip-dark.svg")
    draw(timeline, LIGHT, folder / PICTURE, outcome.verdict)
    for theme, timeline_file, chip_file in zip((LIGHT, DARK), timelines, chips, strict=True):
        draw(timeline, theme, timeline_file)
        draw_heat(temperatures, theme, chip_file)
    write_page(folder / PAGE, outcome, timelines, chips, TRACE)
    return [
        (folder / PAGE, "what happened, on one page (open it in a browser)"),
        (folder / PICTURE, "who ran where and when"),
        (folder / TRACE, "every task; open it in Perfetto (ui.perfetto.dev)"),
    ]
