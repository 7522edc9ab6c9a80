"""Co-execution: one operation on every device at once, by prediction.

A `Session` on a client computes an `Operation` on arrays: it predicts what each device would take, splits the work so
that all are done at the same time, and corrects the split while it runs. `polymux.matmul` and `polymux.conv2d` use a
session of the process; an unseen operation joins as a subclass of `Operation`.

Files: ``operation`` what an operation is, ``matrix_product`` and ``convolution`` two of them, ``functions`` these for
NumPy's users; ``places``, ``units``, ``knowledge``, ``loads`` what is known of a server; ``session``, ``call``,
``run``, ``queues``, ``probe`` a call from plan to result; ``report`` and ``picture`` what it did; ``nodes`` layers of
served models.

References
----------
POAS: a framework for the prediction, optimization, adaptation and scheduling of co-executed operations on heterogeneous
systems. arXiv:2209.10245.
"""

from polymux.coexec.functions import conv2d, matmul
from polymux.coexec.operation import ChunkKernel, Operation, Way
from polymux.coexec.report import Report
from polymux.coexec.session import Session
from polymux.perfmodel.coexec.precision import error_bound

__all__ = ["ChunkKernel", "Operation", "Report", "Session", "Way", "conv2d", "error_bound", "matmul"]
