"""The main job end to end: real models served to real clients beside a numerical application, both on shared devices.

`polymux.demo.run.run` starts ``polymux up`` and ``polymux serve``, sends them real pictures, files and speech, migrates
the numerical application between devices meanwhile, checks every result, and leaves a timeline and a picture of it.
An application like any other: it uses ``polymux.connect``, the command line and HTTP, nothing of the inside.
"""
