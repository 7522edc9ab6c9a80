"""Reads and rewrites the graphs of ONNX files, and runs them to see shapes.

`file` loads and saves, `inputs` says what one item of a batch looks like, `dynamic_batch` frees a fixed batch of 1
by `batch_rules` and proves it, `cost` gives the shapes of every node, `output_shapes` those of the outputs, `running`
runs a model once; `partition` cuts a model into parts, and measures the times of nodes for that.
"""
