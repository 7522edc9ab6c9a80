// The tasks that a worker runs without its caller: native kernels on host memory, or on device memory that was granted.
#include <cstdio>
#include <cstring>

#include "worker.hpp"

namespace polymux {

// Where the task's buffers are; false when they are not all at hand.
bool Worker::find_data(BoundQueue& b, const CheckedTask& task, unsigned char** data) const {
  if (location_ != 0 && b.uses == 0) return false;
  for (uint32_t i = 0; i < task.header.n_buffers; ++i) {
    const CheckedRef& r = task.refs[i];
    if (location_ == 0) {
      if (r.location != 0) return false;
      data[i] = b.segment->base() + r.offset;
    } else if ((data[i] = b.granted_data(r)) == nullptr) {
      return false;
    }
  }
  return true;
}

// False when the task needs the caller (or deserves an error text that the caller writes).
bool Worker::run_native(BoundQueue& b, CheckedTask& task) {
  const TaskHeader& h = task.header;
  if (!b.native || b.in_hand != 0 || task.status != POLYMUX_OK || h.device != 0) return false;
  const bool reserved = h.kernel == kBarrierKernel || h.kernel == kToHostKernel;
  unsigned char* data[POLYMUX_MAX_BUFFERS];
  if (!find_data(b, task, data) || (reserved && location_ != 0)) return false;
  const uint64_t start = cycles();
  if (reserved) {
    finish(b, h, POLYMUX_OK, "", 0, start);
    return true;
  }
  const NativeTable::Kernel* kernel = natives_ ? natives_->find(h.kernel) : nullptr;
  if (kernel == nullptr || h.arguments_nbytes != kernel->arguments_nbytes) return false;
  if (!kernel->variadic) {
    if (h.n_buffers != kernel->n_inputs + kernel->n_outputs) return false;
    for (uint32_t i = 0; i < h.n_buffers; ++i) {
      const uint32_t mask = kernel->dtype_masks[i];
      if (mask != 0 && (mask >> task.refs[i].dtype & 1) == 0) return false;
      const uint8_t needed = i < kernel->n_inputs ? POLYMUX_READ : POLYMUX_WRITE;
      if ((task.refs[i].access & needed) == 0) return false;
    }
  }
  polymux_kernel_buffer buffers[POLYMUX_MAX_BUFFERS];
  for (uint32_t i = 0; i < h.n_buffers; ++i) {
    const CheckedRef& r = task.refs[i];
    buffers[i] = {data[i], r.nbytes, r.dtype, r.access, r.ndim, 0, {}};
    for (int32_t d = 0; d < r.ndim; ++d) buffers[i].shape[d] = r.shape[d];
  }
  if (location_ != 0) --b.uses;
  char message[kErrorTextBytes];
  const int rc = call_kernel(kernel->function, buffers, h.n_buffers, task.arguments, h.arguments_nbytes,
                             kernel->threads ? threads_ : 1, message, sizeof(message));
  native_tasks_.store(native_tasks_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);  // one writer
  if (rc == 0) {
    for (uint32_t i = 0; i < h.n_buffers; ++i) {
      const CheckedRef& r = task.refs[i];
      if ((r.access & POLYMUX_READ) == 0) b.segment->forget_shape(r.slot, r.generation);
    }
    finish(b, h, POLYMUX_OK, "", 0, start);
  } else {
    message[sizeof(message) - 1] = '\0';
    if (message[0] == '\0') std::snprintf(message, sizeof(message), "native kernel %u returned %d", h.kernel, rc);
    const auto status = rc == POLYMUX_BAD_ARGUMENT ? POLYMUX_BAD_ARGUMENT : POLYMUX_KERNEL_FAILED;
    finish(b, h, status, message, std::strlen(message), start);
  }
  return true;
}

void Worker::grant(const std::string& queue, std::vector<GrantedBuffer> buffers, uint32_t uses) {
  BoundQueue* b = bound_.find(queue);
  if (b == nullptr) return;
  b->granted = std::move(buffers);
  b->uses = uses;
}

void Worker::recall(const std::string& queue) {
  if (BoundQueue* b = bound_.find(queue); b != nullptr) b->uses = 0;
}

}  // namespace polymux
