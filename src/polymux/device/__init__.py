"""One file per device API (`cpu`, `opencl`, `simulated`) behind the small protocol of `polymux.device.protocol`.

Each stream of a device is used by exactly one accelerator thread. A new API is one file and one line in
`polymux.device.registry`, or an entry point ``polymux.devices`` of another package.
Import from the file that holds the name.
"""
