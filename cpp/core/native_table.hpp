// The native kernels that accelerator threads run without asking Python.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "polymux.h"

namespace polymux {

// Address of each kernel and what its calls must look like. Shared by workers; entries are replaced, never changed, so
// that readers need no lock.
class NativeTable {
 public:
  struct Kernel {
    polymux_kernel_fn function;
    uint32_t n_inputs;
    uint32_t n_outputs;
    bool variadic;
    uint32_t arguments_nbytes;
    std::vector<uint32_t> dtype_masks;  // inputs, then outputs; 0: any
    bool threads;                       // false: it is told 1, whatever the share has
  };
  static constexpr uint32_t kSize = 4096;

  void set(uint32_t id, Kernel kernel);
  void clear(uint32_t id);
  const Kernel* find(uint32_t id) const { return id < kSize ? table_[id].load(std::memory_order_acquire) : nullptr; }

 private:
  std::mutex mutex_;
  std::atomic<const Kernel*> table_[kSize] = {};
  std::vector<std::unique_ptr<Kernel>> kept_;  // also the replaced ones: a worker may still look at them
};

// Calls a native kernel on arrays that the caller keeps alive; exceptions become a failure with their text.
int call_kernel(polymux_kernel_fn function, const polymux_kernel_buffer* buffers, uint32_t n_buffers,
                const void* arguments, uint32_t arguments_nbytes, uint32_t threads, char* message,
                uint32_t message_nbytes);

}  // namespace polymux
