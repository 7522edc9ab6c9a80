// Offset -> block of every live and every just-released block: open addressing, linear probing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "block_table.hpp"

namespace polymux {

class OffsetIndex {
 public:
  OffsetIndex() : slots_(64) {}

  std::size_t size() const { return count_; }

  BlockId find(uint64_t offset) const {
    for (std::size_t i = home(offset);; i = (i + 1) & mask()) {
      if (slots_[i].id == kNoBlock) return kNoBlock;
      if (slots_[i].offset == offset) return slots_[i].id;
    }
  }

  // Makes the next insert() unable to fail.
  void reserve_one() {
    if ((count_ + 1) * 2 <= slots_.size()) return;
    std::vector<Slot> grown(slots_.size() * 2);
    grown.swap(slots_);
    for (const Slot& slot : grown) {
      if (slot.id != kNoBlock) place(slot);
    }
  }

  void insert(uint64_t offset, BlockId id) {
    place(Slot{offset, id});
    ++count_;
  }

  // Closes the gap by moving later entries of the same run back, so no tombstones pile up.
  void erase(uint64_t offset) {
    std::size_t gap = home(offset);
    while (slots_[gap].offset != offset || slots_[gap].id == kNoBlock) gap = (gap + 1) & mask();
    for (std::size_t i = (gap + 1) & mask(); slots_[i].id != kNoBlock; i = (i + 1) & mask()) {
      const std::size_t from_home = (i - home(slots_[i].offset)) & mask();
      if (from_home < ((i - gap) & mask())) continue;
      slots_[gap] = slots_[i];
      gap = i;
    }
    slots_[gap] = Slot{};
    --count_;
  }

 private:
  struct Slot {
    uint64_t offset = 0;
    BlockId id = kNoBlock;
  };

  std::size_t mask() const { return slots_.size() - 1; }
  // Offsets are multiples of 64; Fibonacci hashing spreads runs of equal sizes.
  std::size_t home(uint64_t offset) const {
    return static_cast<std::size_t>(((offset >> 6) * 0x9E3779B97F4A7C15ull) >> 20) & mask();
  }
  void place(const Slot& slot) {
    std::size_t i = home(slot.offset);
    while (slots_[i].id != kNoBlock) i = (i + 1) & mask();
    slots_[i] = slot;
  }

  std::vector<Slot> slots_;
  std::size_t count_ = 0;
};

}  // namespace polymux
