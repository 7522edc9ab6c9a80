"""How many devices a set of models needs, and which model goes where: arithmetic on latency surfaces. Pure.

`demand` holds what is asked and what there is, `placement` the answer; `work` says how much of a lane a model takes,
`bins` keeps lanes and devices while they fill, `pack` fills as few devices as it can, `fit` a given number with as much
headroom as there is, `spread` loads too few of them evenly; `bound` says how many no placement can do without,
`causes` what the devices are due to.

A device is divided into **lanes**, parts of its units that run one batch at a time; the models of a lane take turns.
A lane is as wide as the share that its batches get, so the lanes of a device are together at most as wide as it is.
"""
