"""softmax_cross_entropy: the loss of a classification and its gradient."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.opencl_plan import OpenCLPlan
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import launch, long, pointers, type_option
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "softmax_cross_entropy",
    inputs=(BufferParam("x", check.FLOATS), BufferParam("labels", (DType.I32, DType.I64))),
    outputs=(BufferParam("loss", check.FLOATS), BufferParam("dx", check.FLOATS)),
    idempotent=True,
    doc="x (rows, classes) are scores, labels (rows) the right classes. loss (rows) = -log(softmax(x)[label]); dx is"
    " the gradient of the mean loss, (softmax(x) - one_hot(labels)) / rows. A label outside 0 to classes - 1 is an"
    " error on cpu devices and makes its row NaN elsewhere.",
)
SOURCE = """
#ifdef cl_khr_fp64
typedef double acc_t;
#else
typedef T acc_t;
#endif
__kernel void softmax_cross_entropy(
    __global const T *x, __global const L *labels, __global T *loss, __global T *dx, long rows, long classes) {
  const long row = get_global_id(0);
  if (row >= rows) return;
  x += row * classes;
  dx += row * classes;
  const long label = labels[row];
  const int known = label >= 0 && label < classes;
  acc_t largest = x[0], total = 0;
  for (long i = 1; i < classes; ++i) largest = fmax(largest, (acc_t)x[i]);
  for (long i = 0; i < classes; ++i) total += exp((acc_t)x[i] - largest);
  loss[row] = known ? (T)(log(total) - ((acc_t)x[label] - largest)) : (T)NAN;
  for (long i = 0; i < classes; ++i) {
    const acc_t probability = exp((acc_t)x[i] - largest) / total;
    dx[i] = known ? (T)((probability - (acc_t)(i == label)) / (acc_t)rows) : (T)NAN;
  }
}
"""


def plan(spec: KernelSpec, buffers: Sequence[BufferView], _scalars: check.Scalars) -> OpenCLPlan:
    """One work-item per row."""
    arrays = check.named(spec, buffers)
    check.require_same_dtypes({name: arrays[name] for name in ("x", "loss", "dx")})
    check.require_rank(arrays, "x", 2, "(rows, classes)")
    rows, classes = arrays["x"].shape
    for name in ("labels", "loss"):
        check.require_shape(arrays, name, (rows,), "one for each row of x")
    check.require_shape(arrays, "dx", (rows, classes), "that of x")
    check.require_apart(arrays, "loss", "x", "labels")
    check.require_apart(arrays, "dx", "x", "labels", "loss")
    if rows and not classes:
        raise InvalidRequest(f"x has shape {(rows, classes)}: no label fits no classes")
    if rows == 0:
        return OpenCLPlan()
    arguments = [*pointers(4), long(rows), long(classes)]
    options = (type_option(arrays["x"].dtype), type_option(arrays["labels"].dtype, "L"))
    return OpenCLPlan((launch("softmax_cross_entropy", arguments, (rows,), (16,)),), options)


KERNEL = Definition(SPEC, (native("softmax_cross_entropy"), OpenCLSource(SOURCE, plan)))
