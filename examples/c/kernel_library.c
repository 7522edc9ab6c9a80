/* A library of native kernels: shared object, C ABI of polymux.h, given to the server by kernels.toml. The server runs
 * its functions on cpu devices, directly on the memory that the application has written. */
#include <polymux.h>
#include <stdio.h>

/* The server refuses a library that was built for another ABI. */
uint32_t polymux_kernel_library_abi(void) { return POLYMUX_KERNEL_ABI; }

static int refuse(polymux_kernel_call* call, const char* reason) {
  snprintf(call->message, call->message_nbytes, "heat_step: %s", reason);
  return 1;
}

/* One explicit step of the heat equation with fixed edges: after = before + alpha * laplacian(before). The server has
 * checked number and types of the buffers and the size of the scalars against kernels.toml; shapes are the kernel's. */
POLYMUX_API int heat_step(polymux_kernel_call* call) {
  const polymux_kernel_buffer *before = &call->buffers[0], *after = &call->buffers[1];
  if (before->ndim != 2 || after->ndim != 2) return refuse(call, "both plates must have two dimensions");
  if (before->shape[0] != after->shape[0] || before->shape[1] != after->shape[1]) {
    return refuse(call, "both plates must have the same shape");
  }
  if (before->data == after->data) return refuse(call, "the plates must be two different buffers");
  const double alpha = *(const double*)call->args;
  const int64_t rows = before->shape[0], columns = before->shape[1];
  const double* restrict u = before->data;
  double* restrict v = after->data;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t i = row * columns + column;
      if (row == 0 || row == rows - 1 || column == 0 || column == columns - 1) {
        v[i] = u[i];
      } else {
        v[i] = u[i] + alpha * (u[i - columns] + u[i + columns] + u[i - 1] + u[i + 1] - 4.0 * u[i]);
      }
    }
  }
  return 0;
}
