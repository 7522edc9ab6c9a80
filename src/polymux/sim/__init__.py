"""Virtual time: the engine and the policies of the server, driven by a model of devices and applications.

`model` describes what there is and what is to be done, `simulation` plays it out, `outcome` says what came of it.
Nothing here waits, and the same model gives the same outcome, to the nanosecond, on every machine.
"""
