"""What was measured of models and kernels on devices: a store in one SQLite file.

`records` and `coexec` hold what is stored, `identity` the keys of models and devices, `store` reads and writes.
Measuring is `polymux.profiling`'s part; planning, serving and co-execution only read, and refresh what they observe.
"""

from polymux.profiles.coexec import CoexecUnit, coexec_device_key, coexec_identity
from polymux.profiles.identity import DeviceIdentity, device_key, identify, model_key
from polymux.profiles.records import Beside, Grid, NodeCost, Point, ProfiledModel, Roof
from polymux.profiles.store import ProfileStore

__all__ = [
    "Beside",
    "CoexecUnit",
    "DeviceIdentity",
    "Grid",
    "NodeCost",
    "Point",
    "ProfileStore",
    "ProfiledModel",
    "Roof",
    "coexec_device_key",
    "coexec_identity",
    "device_key",
    "identify",
    "model_key",
]
