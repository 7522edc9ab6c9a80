"""Training as an application: an ordinary PyTorch loop gives way to others, moves, stops and resumes.

`job` puts a loop under a lease of the server's; `partition` cuts a module into stages. Both need PyTorch
(``pip install 'polymux[train]'``).
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"polymux.training needs PyTorch ({error}); install it: pip install 'polymux[train]', or pip install torch"
    ) from error

from polymux.training.checkpoint import BadCheckpoint
from polymux.training.stages import Stage, StagedModule, partition
from polymux.training.start import job
from polymux.training.training_job import Job

__all__ = ["BadCheckpoint", "Job", "Stage", "StagedModule", "job", "partition"]
