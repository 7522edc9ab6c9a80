#include "native_table.hpp"

#include <cstring>
#include <exception>
#include <string>

#include "segment.hpp"

namespace polymux {

void NativeTable::set(uint32_t id, Kernel kernel) {
  if (id >= kSize) throw SegmentError("kernel id " + std::to_string(id) + " is above " + std::to_string(kSize - 1));
  std::lock_guard lock(mutex_);
  kept_.push_back(std::make_unique<Kernel>(std::move(kernel)));
  table_[id].store(kept_.back().get(), std::memory_order_release);
}

void NativeTable::clear(uint32_t id) {
  if (id < kSize) table_[id].store(nullptr, std::memory_order_release);
}

int call_kernel(polymux_kernel_fn function, const polymux_kernel_buffer* buffers, uint32_t n_buffers,
                const void* arguments, uint32_t arguments_nbytes, uint32_t threads, char* message,
                uint32_t message_nbytes) {
  polymux_kernel_call call{POLYMUX_KERNEL_ABI, n_buffers, buffers, arguments,
                           arguments_nbytes,   threads,   message, message_nbytes};
  message[0] = '\0';
  try {
    return function(&call);
  } catch (const std::exception& e) {
    std::strncpy(message, e.what(), message_nbytes - 1);
    message[message_nbytes - 1] = '\0';
  } catch (...) {
    std::strncpy(message, "threw something that is no std::exception", message_nbytes);
    message[message_nbytes - 1] = '\0';
  }
  return -1;
}

}  // namespace polymux
