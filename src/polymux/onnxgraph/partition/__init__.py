"""Cuts a model into parts that run one after the other and give what the whole gives.

`optimized_file` has onnxruntime write the model as it computes it on this processor, `flow` reads which node uses what
and where a cut would carry little, `node_times` how long each node takes, `choose` picks the cuts (pure), `split` makes
a model of each part, `comparison` runs whole and parts against each other. `partition` does all of it.
"""
