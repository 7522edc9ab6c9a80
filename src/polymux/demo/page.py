"""The page that tells a run to somebody who did not see it: one HTML file with everything in it."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from polymux.demo.models import MODELS
from polymux.demo.outcome import Outcome
from polymux.demo.summary import mebibytes

__all__ = ["write_page"]

_MARKS = {True: '<span class="good">✔</span>', False: '<span class="bad">✘</span>', None: "·"}
_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1a1a1a; --dim: #666; --line: #d8d8d8; --good: #15803d;
        --bad: #b91c1c; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171c; --ink: #e8e8e8; --dim: #9aa0a8; --line: #343a43; --good: #4ade80; --bad: #f87171; }
}
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
       max-width: 1400px; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { max-width: 75ch; } .dim { color: var(--dim); } .good { color: var(--good); } .bad { color: var(--bad); }
.verdict { font-weight: 600; font-size: 1.1rem; }
table { border-collapse: collapse; } .wide td, .wide th { white-space: nowrap; }
th, td { padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top; }
th { font-weight: 600; border-bottom: 1px solid var(--line); } .number { text-align: right; }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; }
.wide { overflow-x: auto; } code { font-size: .95em; }
.columns { display: flex; gap: 3rem; flex-wrap: wrap; }
"""


def write_page(
    path: Path, outcome: Outcome, timeline: tuple[Path, Path], heat: tuple[Path, Path], trace: str
) -> None:
    """Write the page.

    Parameters
    ----------
    path : Path
    outcome : Outcome
    timeline, heat : (Path, Path)
        Pictures of who ran where and of the chip, as SVG, for light and for dark surroundings.
    trace : str
        Name of the trace's file beside the page.
    """
    good = not outcome.problems
    body = [
        "<h1>Polymux: models and a numerical application on shared devices</h1>",
        f'<p class="verdict {"good" if good else "bad"}">{escape(outcome.verdict)}</p>',
        *(f'<p class="bad">{escape(problem)}</p>' for problem in outcome.problems[1:]),
        "<p>Four models were served over HTTP to clients that sent them photographs, files and speech. Beside them a"
        " numerical application computed how a chip becomes warm; it was moved between devices while it ran, and"
        " noticed nothing. Each bar below is one task.</p>",
        _figure(timeline, "Who ran where and when: a lane for each stream of each device"),
        f'<p class="dim">Every task can be looked at in <code>{escape(trace)}</code>: open it in Perfetto'
        " (ui.perfetto.dev, which reads the file in the browser).</p>",
        _models(outcome),
        _findings(outcome),
        '<div class="columns"><div>',
        _application(outcome),
        "</div><div>",
        _figure(heat, "The chip's temperatures at the end"),
        "</div></div>",
    ]
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Polymux demo</title><style>{_STYLE}</style></head>"
    )
    path.write_text("\n".join([f"{head}<body>", *body, "</body></html>\n"]), encoding="utf-8")


def _figure(pictures: tuple[Path, Path], caption: str) -> str:
    light, dark = (
        f"data:image/svg+xml;base64,{base64.b64encode(file.read_bytes()).decode()}" for file in pictures
    )
    return (
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{escape(caption)}"></picture></figure>'
    )


def _models(outcome: Outcome) -> str:
    rows = [
        (
            f"<b>{escape(name)}</b>",
            f'<span class="dim">{escape(MODELS[name].does)}</span>',
            f"{model.sent:,}",
            f"{model.answered:,}",
            f"{model.answered - model.wrong:,}",
            f"{model.percentile_ms(50):.1f}",
            f"{model.percentile_ms(99):.1f}",
            f"{outcome.tally.throughput(name, outcome.load_s):.1f}",
        )
        for name, model in outcome.tally.models.items()
    ]
    head = ("model", "", "sent", "answered", "right", "p50 ms", "p99 ms", "a second")
    return f"<h2>Requests over HTTP in {outcome.load_s:.0f} s</h2>" + _table(head, rows, numbers_from=2)


def _application(outcome: Outcome) -> str:
    rows = [
        ("time steps", f"{outcome.steps:,}"),
        ("longest batch of steps", f"{outcome.longest_batch_ms:.1f} ms"),
        ("migrations", f"{outcome.moves}, devices: {escape(', '.join(outcome.devices))}"),
        ("bytes moved", mebibytes(outcome.copied_nbytes)),
    ]
    return "<h2>The numerical application</h2>" + _table((), rows)


def _findings(outcome: Outcome) -> str:
    rows = [
        (
            _MARKS[finding.good],
            escape(finding.what),
            f"<b>{escape(finding.result)}</b>",
        )
        for finding in outcome.findings
    ]
    return "<h2>Results</h2>" + _table((), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int | None = None) -> str:
    def cell(tag: str, index: int, text: str) -> str:
        style = ' class="number"' if numbers_from is not None and index >= numbers_from else ""
        return f"<{tag}{style}>{text}</{tag}>"

    lines = (
        [f"<tr>{''.join(cell('th', index, text) for index, text in enumerate(head))}</tr>"] if head else []
    )
    lines += [
        f"<tr>{''.join(cell('td', index, text) for index, text in enumerate(row))}</tr>" for row in rows
    ]
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'
