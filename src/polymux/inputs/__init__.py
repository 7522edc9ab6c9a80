"""Input stages: what turns raw inputs (a JPEG file, a text) into tensors, on threads beside the accelerator.

A `stage` is a kernel that runs on one item; `registry` makes one from a text such as ``"image,normalise=imagenet"``.
`pool` runs stages on a bounded number of threads, and once for everybody who wants the same of the same bytes;
`pipeline` keeps a job's next batches ready while it works on this one.
"""

from __future__ import annotations

from polymux.inputs.pipeline import Pipeline
from polymux.inputs.pool import StagePool
from polymux.inputs.registry import input_stage, make_stage
from polymux.inputs.shared_store import SharedStore
from polymux.inputs.stage import InputStage

__all__ = ["InputStage", "Pipeline", "SharedStore", "StagePool", "input_stage", "make_stage"]
