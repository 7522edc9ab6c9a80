"""What was measured of models on devices: a store in one SQLite file.

`records` holds what is stored, `identity` the keys of models and devices, `store` reads and writes. Measuring is
`polymux.profiling`'s part; planning and serving only read.
"""

from polymux.profiles.identity import DeviceIdentity, device_key, identify, model_key
from polymux.profiles.records import Beside, Grid, NodeCost, Point, ProfiledModel, Roof
from polymux.profiles.store import ProfileStore

__all__ = [
    "Beside",
    "DeviceIdentity",
    "Grid",
    "NodeCost",
    "Point",
    "ProfileStore",
    "ProfiledModel",
    "Roof",
    "device_key",
    "identify",
    "model_key",
]
