// What a kernel knows about its buffers and scalars: read from the call, checked before any memory is touched.
#pragma once

#include <polymux.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>

namespace polymux::kernels {

// Thrown by checks; its text becomes the task's message.
struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A buffer whose shape, size, dtype and alignment hold together.
struct Array {
  const char* name = "";
  void* data = nullptr;
  int32_t dtype = 0;
  int32_t rank = 0;
  uint64_t itemsize = 0;
  uint64_t count = 0;  // elements
  std::array<int64_t, POLYMUX_MAX_DIMENSIONS> extents{};

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  uint64_t nbytes() const { return count * itemsize; }
  std::span<const int64_t> shape() const { return {extents.data(), static_cast<size_t>(rank)}; }
  uint64_t extent(int32_t axis) const { return static_cast<uint64_t>(extents[static_cast<size_t>(axis)]); }
};

std::string dtype_name(int32_t dtype);
std::string shape_text(std::span<const int64_t> shape);

// Buffers and scalars of one call. Buffers are taken in order (inputs, then outputs), so are scalars.
class Operands {
 public:
  explicit Operands(const polymux_kernel_call* call);

  Array buffer(const char* name);
  template <class T>
  T scalar(const char* name) {
    T value;
    std::memcpy(&value, take_scalar(name, sizeof(T)), sizeof(T));
    return value;
  }
  uint32_t threads() const { return call_->threads; }
  void finish() const;  // refuses what is left over

 private:
  const void* take_scalar(const char* name, size_t nbytes);

  const polymux_kernel_call* call_;
  uint32_t next_buffer_ = 0;
  uint32_t next_byte_ = 0;
};

[[noreturn]] void refuse(const std::string& text);
void require_dtype(const Array& array, std::initializer_list<int32_t> accepted);
void require_same_dtype(const Array& array, const Array& reference);
void require_same_shape(const Array& array, const Array& reference);
void require_rank(const Array& array, int32_t rank, const char* layout);
void require_shape(const Array& array, std::span<const int64_t> expected, const std::string& reason);
// The arrays share no byte.
void require_apart(const Array& output, const Array& input);
// The arrays share no byte, or are the very same.
void require_apart_or_same(const Array& output, const Array& input);

template <class T>
constexpr int32_t dtype_of();
template <>
constexpr int32_t dtype_of<float>() {
  return POLYMUX_F32;
}
template <>
constexpr int32_t dtype_of<double>() {
  return POLYMUX_F64;
}
template <>
constexpr int32_t dtype_of<int32_t>() {
  return POLYMUX_I32;
}
template <>
constexpr int32_t dtype_of<int64_t>() {
  return POLYMUX_I64;
}

// Calls body.operator()<T>() for the T of `array`, or refuses when T is none of Types.
template <class... Types, class Body>
void for_dtype(const Array& array, Body&& body) {
  const bool found = ((array.dtype == dtype_of<Types>() && (body.template operator()<Types>(), true)) || ...);
  if (!found) {
    require_dtype(array, {dtype_of<Types>()...});
  }
}

struct Bytes16 {
  uint64_t low, high;
};

// Calls body.operator()<T>() for an integer type of the array's element size: for kernels that only move elements.
template <class Body>
void for_itemsize(const Array& array, Body&& body) {
  switch (array.itemsize) {
    case 1:
      return body.template operator()<uint8_t>();
    case 2:
      return body.template operator()<uint16_t>();
    case 4:
      return body.template operator()<uint32_t>();
    case 8:
      return body.template operator()<uint64_t>();
    default:
      return body.template operator()<Bytes16>();
  }
}

void write_message(polymux_kernel_call* call, const char* text) noexcept;

// What every exported kernel is: `body` run with the call's operands, exceptions turned into a message and a status.
template <class Body>
int run(polymux_kernel_call* call, Body&& body) noexcept {
  try {
    Operands operands(call);
    body(operands);
    return 0;
  } catch (const Refusal& refusal) {
    write_message(call, refusal.what());
    return POLYMUX_BAD_ARGUMENT;
  } catch (const std::exception& error) {
    write_message(call, error.what());
  } catch (...) {
    write_message(call, "unknown C++ exception");
  }
  return POLYMUX_KERNEL_FAILED;
}

}  // namespace polymux::kernels

#define POLYMUX_KERNEL(name) extern "C" POLYMUX_API int polymux_kernel_##name(polymux_kernel_call* call)
