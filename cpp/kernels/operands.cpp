#include "operands.hpp"

#include <algorithm>

namespace polymux::kernels {
namespace {

struct DTypeInfo {
  const char* name;
  uint32_t itemsize;
};

// In the order of polymux_dtype.
constexpr DTypeInfo kDTypes[] = {{"b1", 1}, {"i1", 1}, {"i2", 2},   {"i4", 4}, {"i8", 8},
                                 {"u1", 1}, {"u2", 2}, {"u4", 4},   {"u8", 8}, {"f2", 2},
                                 {"f4", 4}, {"f8", 8}, {"bf16", 2}, {"c8", 8}, {"c16", 16}};
constexpr int32_t kDTypeCount = static_cast<int32_t>(std::size(kDTypes));

bool overlap(const Array& a, const Array& b) {
  const auto a_begin = reinterpret_cast<uintptr_t>(a.data), b_begin = reinterpret_cast<uintptr_t>(b.data);
  return a.count != 0 && b.count != 0 && a_begin < b_begin + b.nbytes() && b_begin < a_begin + a.nbytes();
}

}  // namespace

std::string dtype_name(int32_t dtype) {
  return dtype >= 0 && dtype < kDTypeCount ? kDTypes[dtype].name : std::to_string(dtype);
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i != 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

void refuse(const std::string& text) { throw Refusal(text); }

Operands::Operands(const polymux_kernel_call* call) : call_(call) {
  if (call->abi != POLYMUX_KERNEL_ABI) {
    refuse("the caller speaks kernel ABI " + std::to_string(call->abi) + ", this library " +
           std::to_string(POLYMUX_KERNEL_ABI));
  }
}

Array Operands::buffer(const char* name) {
  if (next_buffer_ >= call_->n_buffers) {
    refuse(std::string(name) + " is missing: " + std::to_string(call_->n_buffers) + " buffers were given");
  }
  const polymux_kernel_buffer& given = call_->buffers[next_buffer_++];
  if (given.dtype < 0 || given.dtype >= kDTypeCount) {
    refuse(std::string(name) + " has the unknown dtype " + std::to_string(given.dtype));
  }
  if (given.ndim < 0 || given.ndim > POLYMUX_MAX_DIMENSIONS) {
    refuse(std::string(name) + " has " + std::to_string(given.ndim) + " dimensions, expected 0 to " +
           std::to_string(POLYMUX_MAX_DIMENSIONS));
  }
  Array array{name, given.data, given.dtype, given.ndim, kDTypes[given.dtype].itemsize, 1, {}};
  std::copy_n(given.shape, given.ndim, array.extents.begin());
  // As in NumPy a zero does not excuse the other extents: their product must fit, so that no index overflows later.
  uint64_t nbytes = array.itemsize;
  bool empty = false;
  for (const int64_t extent : array.shape()) {
    empty = empty || extent == 0;
    if (extent < 0 || __builtin_mul_overflow(nbytes, extent == 0 ? 1 : static_cast<uint64_t>(extent), &nbytes) ||
        nbytes > static_cast<uint64_t>(INT64_MAX)) {
      refuse(std::string(name) + " has the impossible shape " + shape_text(array.shape()));
    }
  }
  array.count = empty ? 0 : nbytes / array.itemsize;
  if (array.nbytes() > given.nbytes) {
    refuse(std::string(name) + " has shape " + shape_text(array.shape()) + " of " + dtype_name(array.dtype) +
           ", but only " + std::to_string(given.nbytes) + " bytes");
  }
  if (array.count != 0 && (given.data == nullptr || reinterpret_cast<uintptr_t>(given.data) % array.itemsize != 0)) {
    refuse(std::string(name) + " is not aligned to its elements of " + std::to_string(array.itemsize) + " bytes");
  }
  return array;
}

const void* Operands::take_scalar(const char* name, size_t nbytes) {
  const auto size = static_cast<uint32_t>(nbytes);
  const uint32_t begin = (next_byte_ + size - 1) / size * size;
  if (begin + size > call_->args_nbytes || call_->args == nullptr) {
    refuse("scalar " + std::string(name) + " is missing: " + std::to_string(call_->args_nbytes) +
           " bytes of arguments were given");
  }
  next_byte_ = begin + size;
  return static_cast<const char*>(call_->args) + begin;
}

void Operands::finish() const {
  if (next_buffer_ != call_->n_buffers) {
    refuse(std::to_string(call_->n_buffers) + " buffers were given, expected " + std::to_string(next_buffer_));
  }
}

void require_dtype(const Array& array, std::initializer_list<int32_t> accepted) {
  std::string names;
  for (const int32_t dtype : accepted) {
    if (array.dtype == dtype) {
      return;
    }
    names += (names.empty() ? "" : ", ") + dtype_name(dtype);
  }
  refuse(std::string(array.name) + " has dtype " + dtype_name(array.dtype) + ", expected one of " + names);
}

void require_same_dtype(const Array& array, const Array& reference) {
  if (array.dtype != reference.dtype) {
    refuse(std::string(array.name) + " has dtype " + dtype_name(array.dtype) + ", expected " +
           dtype_name(reference.dtype) + " (that of " + reference.name + ")");
  }
}

void require_shape(const Array& array, std::span<const int64_t> expected, const std::string& reason) {
  if (!std::ranges::equal(array.shape(), expected)) {
    refuse(std::string(array.name) + " has shape " + shape_text(array.shape()) + ", expected " + shape_text(expected) +
           " (" + reason + ")");
  }
}

void require_same_shape(const Array& array, const Array& reference) {
  require_shape(array, reference.shape(), std::string("that of ") + reference.name);
}

void require_rank(const Array& array, int32_t rank, const char* layout) {
  if (array.rank != rank) {
    refuse(std::string(array.name) + " has shape " + shape_text(array.shape()) + ", expected " + std::to_string(rank) +
           " dimensions " + layout);
  }
}

void require_apart(const Array& output, const Array& input) {
  if (overlap(output, input)) {
    refuse(std::string(output.name) + " must not share memory with " + input.name + "; give it a buffer of its own");
  }
}

void require_apart_or_same(const Array& output, const Array& input) {
  if (output.data != input.data) {
    require_apart(output, input);
  }
}

void write_message(polymux_kernel_call* call, const char* text) noexcept {
  if (call->message != nullptr && call->message_nbytes > 0) {
    const size_t length = std::min<size_t>(std::strlen(text), call->message_nbytes - 1);
    std::memcpy(call->message, text, length);
    call->message[length] = '\0';
  }
}

}  // namespace polymux::kernels

uint32_t polymux_kernel_library_abi(void) { return POLYMUX_KERNEL_ABI; }
