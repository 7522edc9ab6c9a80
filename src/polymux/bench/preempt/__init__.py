"""Inference next to training on the same cores: every way to share them, each process on its own.

`configurations` lists the ways, `inference` and `trainer` are processes, `worker` runs them and `gate` stands between
them, `machine` tells what other processes took meanwhile, `cell` measures one model at one load in rounds, `figures`
turns rounds into results, `benchmark` puts them together and has ``run``.
"""
