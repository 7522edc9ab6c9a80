"""Prints what an ONNX model takes and gives, as a kernel's spec: ``python -m polymux.server.model_signature``."""

from __future__ import annotations

import sys

from polymux.core.errors import PolymuxError
from polymux.device.onnx_model import kernel_spec


def main() -> None:
    """Read the model's file and the kernel's name from the command line."""
    path, name = sys.argv[1:]
    try:
        sys.stdout.write(kernel_spec(path, name).to_text())
    except (PolymuxError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
