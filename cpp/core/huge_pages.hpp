// Huge pages under shared memory: an eighth of the time to get it, and fewer misses of the address cache afterwards.
#pragma once

#include <cstdint>
#include <vector>

namespace polymux {

inline constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

// Maps a whole memory file so that its huge pages can be mapped as such; nullptr when the system refuses.
unsigned char* map_shared(uint64_t nbytes, int fd);

// Which huge pages of one client's segment have been asked for.
class HugePages {
 public:
  HugePages(unsigned char* base, uint64_t nbytes) : base_(base), asked_(nbytes / kHugePageBytes) {}

  // Has those within [offset, offset + nbytes) backed by huge pages, unless that takes much of the memory that is
  // free. What the system cannot do is left as it is: pages come one by one then, as they are touched.
  void back(uint64_t offset, uint64_t nbytes);

 private:
  unsigned char* base_;
  std::vector<bool> asked_;
};

}  // namespace polymux
