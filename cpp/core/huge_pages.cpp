#include "huge_pages.hpp"

#include <sys/mman.h>
#include <sys/sysinfo.h>

namespace polymux {

namespace {

#ifndef MADV_COLLAPSE
constexpr int MADV_COLLAPSE = 25;  // Linux 6.1
#endif
constexpr uint64_t kPartOfFree = 4;

bool is_plenty(uint64_t nbytes) {
  struct sysinfo info{};
  return sysinfo(&info) == 0 && nbytes <= uint64_t{info.freeram} * info.mem_unit / kPartOfFree;
}

}  // namespace

unsigned char* map_shared(uint64_t nbytes, int fd) {
  // Reserved first, for an address that is a multiple of a huge page, as the offset in the file is.
  const uint64_t reserved = nbytes + kHugePageBytes;
  void* at = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  auto* const first = static_cast<unsigned char*>(at);
  const uint64_t skipped = -reinterpret_cast<uintptr_t>(first) % kHugePageBytes;
  unsigned char* const base = first + skipped;
  if (mmap(base, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED) {
    munmap(first, reserved);
    return nullptr;
  }
  const uint64_t mapped = (nbytes + 4095) / 4096 * 4096;
  if (skipped != 0) munmap(first, skipped);
  if (reserved > skipped + mapped) munmap(base + mapped, reserved - skipped - mapped);
  return base;
}

void HugePages::back(uint64_t offset, uint64_t nbytes) {
  const uint64_t end = (offset + nbytes) / kHugePageBytes;
  for (uint64_t page = (offset + kHugePageBytes - 1) / kHugePageBytes; page < end;) {
    uint64_t next = page;
    while (next < end && !asked_[next]) asked_[next++] = true;
    if (next == page) {
      ++page;
      continue;
    }
    unsigned char* const at = base_ + page * kHugePageBytes;
    const uint64_t length = (next - page) * kHugePageBytes;
    if (is_plenty(length)) {
      // A huge page is made of what is there, and nothing is made of nothing.
      for (uint64_t i = 0; i < length; i += kHugePageBytes)
        static_cast<void>(*const_cast<volatile unsigned char*>(at + i));
      madvise(at, length, MADV_COLLAPSE);
    }
    page = next;
  }
}

}  // namespace polymux
