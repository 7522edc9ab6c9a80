"""Reads and rewrites the graphs of ONNX files, and runs them once to see shapes; nothing is measured here.

`file` loads and saves, `inputs` says what one item of a batch looks like, `dynamic_batch` frees a fixed batch of 1
by `batch_rules` and proves it, `cost` gives the shapes of every node, `output_shapes` those of the outputs, `running`
runs a model once.
"""
