"""How an implementation travels to the server when an application registers a kernel."""

from __future__ import annotations

import base64
import json
import os
import sys
from dataclasses import replace

import cloudpickle

from polymux.core.implementation import Implementation, OnnxModel, OpenVinoModel, ProviderModel
from polymux.core.kernel_spec import KernelSpec


def registration_fields(
    name: str, spec: KernelSpec | None, implementation: Implementation, isolate: bool
) -> dict[str, str]:
    """Fields of a ``register`` request.

    Notes
    -----
    A Python function of ``__main__`` or a closure travels by value, one of an importable module by reference: the
    worker process gets this process' ``sys.path`` and working directory.
    """
    fields = {
        "name": name,
        "spec": spec.to_text() if spec is not None else "",
        "api": implementation.api,
        "isolate": "1" if isolate else "0",
        "sys_path": json.dumps([os.path.abspath(entry) for entry in sys.path]),
        "cwd": os.getcwd(),
    }
    if isinstance(implementation, (OpenVinoModel, ProviderModel)):
        implementation = replace(implementation, path=os.path.abspath(implementation.path))
    if isinstance(implementation, OnnxModel):
        fields["path"] = os.path.abspath(implementation.path)
        fields["options"] = json.dumps(implementation.options)
        fields["optimized"] = "1" if implementation.optimized else "0"
    else:
        fields["implementation"] = base64.b64encode(cloudpickle.dumps(implementation)).decode()
    return fields
