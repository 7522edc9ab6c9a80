"""The page on monitoring lists exactly the metrics that there are, with their types and labels."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from polymux.metrics.exposition import Metrics
from tests.unit.metrics.states import state

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"
ROW = re.compile(r"^\| `(polymux_\w+)` \| (\w+) \| ([\w, ]*)\|", re.MULTILINE)


def test_the_page_lists_every_metric_with_its_type_and_labels() -> None:
    listed = {
        name: (kind, set(re.findall(r"\w+", labels))) for name, kind, labels in ROW.findall(PAGE.read_text())
    }
    there = {
        sample.name: (family.type, set(sample.labels))
        for family in text_string_to_metric_families(Metrics(state).expose(None).text.decode())
        for sample in family.samples
    }
    assert listed == there


def test_every_expression_of_the_page_names_metrics_that_there_are() -> None:
    text = PAGE.read_text()
    listed = {name for name, _, _ in ROW.findall(text)}
    assert set(re.findall(r"polymux_\w+", text)) <= listed
