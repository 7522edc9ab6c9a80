"""Reads and rewrites the graphs of ONNX files; nothing runs on a device here.

`file` loads and saves, `inputs` says what one item of a batch looks like, `dynamic_batch` frees a fixed batch of 1 and
proves it, `cost` reads the shapes of every node.
"""
