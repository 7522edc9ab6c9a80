#include "free_bins.hpp"

#include <bit>

namespace polymux {
namespace {

unsigned log2_floor(uint64_t value) { return 63u - static_cast<unsigned>(std::countl_zero(value)); }

// Sizes that share their two leading bits share a trie.
std::size_t trie_of(uint64_t nbytes) {
  const unsigned log2 = log2_floor(nbytes);
  return (log2 - 16) * 2 + ((nbytes >> (log2 - 1)) & 1);
}

// The bits that decide the way down, the first one on top.
uint64_t path_of(uint64_t nbytes) { return nbytes << (65 - log2_floor(nbytes)); }

}  // namespace

FreeBins::FreeBins(BlockTable& blocks) : blocks_(blocks) {
  static_assert(kLargeNbytes == uint64_t{1} << 16 && kWords <= 64);
  small_.fill(kNoBlock);
  tries_.fill(kNoBlock);
}

void FreeBins::insert(BlockId id) {
  Block& block = blocks_[id];
  block.state = BlockState::kBinned;
  ++count_;
  if (block.nbytes >= kLargeNbytes) return insert_large(id);
  const std::size_t bin = block.nbytes / kGranule;
  block.list_prev = kNoBlock;
  block.list_next = small_[bin];
  if (small_[bin] != kNoBlock) blocks_[small_[bin]].list_prev = id;
  small_[bin] = id;
  small_map_[bin / 64] |= uint64_t{1} << (bin % 64);
  word_map_ |= uint64_t{1} << (bin / 64);
}

void FreeBins::remove(BlockId id) {
  Block& block = blocks_[id];
  --count_;
  if (block.nbytes >= kLargeNbytes) return remove_large(id);
  const std::size_t bin = block.nbytes / kGranule;
  if (block.list_next != kNoBlock) blocks_[block.list_next].list_prev = block.list_prev;
  if (block.list_prev != kNoBlock) {
    blocks_[block.list_prev].list_next = block.list_next;
    return;
  }
  small_[bin] = block.list_next;
  if (small_[bin] != kNoBlock) return;
  small_map_[bin / 64] &= ~(uint64_t{1} << (bin % 64));
  if (small_map_[bin / 64] == 0) word_map_ &= ~(uint64_t{1} << (bin / 64));
}

BlockId FreeBins::best(uint64_t nbytes) const {
  if (nbytes < kLargeNbytes) {
    const BlockId id = best_small(nbytes);
    if (id != kNoBlock) return id;
    if (trie_map_ == 0) return kNoBlock;
    return smallest_of(tries_[static_cast<std::size_t>(std::countr_zero(trie_map_))]);
  }
  return best_large(nbytes);
}

BlockId FreeBins::best_small(uint64_t nbytes) const {
  const std::size_t bin = nbytes / kGranule;
  const uint64_t here = small_map_[bin / 64] & (~uint64_t{0} << (bin % 64));
  if (here != 0) return small_[bin / 64 * 64 + static_cast<std::size_t>(std::countr_zero(here))];
  const uint64_t later = bin / 64 == 63 ? 0 : word_map_ & (~uint64_t{0} << (bin / 64 + 1));
  if (later == 0) return kNoBlock;
  const std::size_t word = static_cast<std::size_t>(std::countr_zero(later));
  return small_[word * 64 + static_cast<std::size_t>(std::countr_zero(small_map_[word]))];
}

BlockId FreeBins::best_large(uint64_t nbytes) const {
  const std::size_t bin = trie_of(nbytes);
  BlockId found = kNoBlock;
  BlockId larger = kNoBlock;  // the last subtree passed by whose sizes all exceed nbytes
  uint64_t path = path_of(nbytes);
  for (BlockId node = tries_[bin]; node != kNoBlock; path <<= 1) {
    const Block& block = blocks_[node];
    if (block.nbytes >= nbytes && (found == kNoBlock || block.nbytes < blocks_[found].nbytes)) found = node;
    if (block.nbytes == nbytes) break;
    const std::size_t side = path >> 63;
    if (side == 0 && block.child[1] != kNoBlock) larger = block.child[1];
    node = block.child[side];
  }
  if (larger != kNoBlock && (found == kNoBlock || blocks_[found].nbytes != nbytes)) {
    const BlockId other = smallest_of(larger);
    if (found == kNoBlock || blocks_[other].nbytes < blocks_[found].nbytes) found = other;
  }
  if (found == kNoBlock) {
    const uint64_t later = bin == kTries - 1 ? 0 : trie_map_ & (~uint64_t{0} << (bin + 1));
    if (later == 0) return kNoBlock;
    return smallest_of(tries_[static_cast<std::size_t>(std::countr_zero(later))]);
  }
  const BlockId latest = blocks_[found].list_next;
  return latest != kNoBlock ? latest : found;
}

// A node is no order statistic of its subtree, but everything left of it is smaller than everything right.
BlockId FreeBins::smallest_of(BlockId node) const {
  BlockId found = node;
  while (node != kNoBlock) {
    const Block& block = blocks_[node];
    if (block.nbytes < blocks_[found].nbytes) found = node;
    node = block.child[0] != kNoBlock ? block.child[0] : block.child[1];
  }
  return found;
}

// Blocks of one size hang on the one that stands in the trie, the latest freed first.
void FreeBins::insert_large(BlockId id) {
  Block& block = blocks_[id];
  block.parent = block.child[0] = block.child[1] = block.list_prev = block.list_next = kNoBlock;
  block.in_trie = true;
  const std::size_t bin = trie_of(block.nbytes);
  uint64_t path = path_of(block.nbytes);
  BlockId node = tries_[bin];
  if (node == kNoBlock) {
    tries_[bin] = id;
    trie_map_ |= uint64_t{1} << bin;
    return;
  }
  for (; blocks_[node].nbytes != block.nbytes; path <<= 1) {
    const std::size_t side = path >> 63;
    const BlockId below = blocks_[node].child[side];
    if (below == kNoBlock) {
      blocks_[node].child[side] = id;
      block.parent = node;
      return;
    }
    node = below;
  }
  block.in_trie = false;
  block.list_prev = node;
  block.list_next = blocks_[node].list_next;
  if (block.list_next != kNoBlock) blocks_[block.list_next].list_prev = id;
  blocks_[node].list_next = id;
}

void FreeBins::remove_large(BlockId id) {
  Block& block = blocks_[id];
  if (!block.in_trie) {
    blocks_[block.list_prev].list_next = block.list_next;
    if (block.list_next != kNoBlock) blocks_[block.list_next].list_prev = block.list_prev;
    return;
  }
  block.in_trie = false;
  if (block.list_next != kNoBlock) {
    const BlockId heir = block.list_next;
    blocks_[heir].list_prev = kNoBlock;
    blocks_[heir].in_trie = true;
    return replace_node(id, heir);
  }
  const BlockId leaf = detach_leaf_below(id);
  replace_node(id, leaf);
}

// Any descendant shares the node's prefix, so any leaf below may take its place.
BlockId FreeBins::detach_leaf_below(BlockId node) {
  BlockId leaf = node;
  while (true) {
    const Block& block = blocks_[leaf];
    const BlockId below = block.child[1] != kNoBlock ? block.child[1] : block.child[0];
    if (below == kNoBlock) break;
    leaf = below;
  }
  if (leaf == node) return kNoBlock;
  Block& above = blocks_[blocks_[leaf].parent];
  above.child[above.child[1] == leaf ? 1 : 0] = kNoBlock;
  return leaf;
}

void FreeBins::replace_node(BlockId node, BlockId with) {
  const Block& old = blocks_[node];
  if (old.parent == kNoBlock) {
    const std::size_t bin = trie_of(old.nbytes);
    tries_[bin] = with;
    if (with == kNoBlock) trie_map_ &= ~(uint64_t{1} << bin);
  } else {
    Block& above = blocks_[old.parent];
    above.child[above.child[1] == node ? 1 : 0] = with;
  }
  if (with == kNoBlock) return;
  Block& heir = blocks_[with];
  heir.parent = old.parent;
  for (std::size_t side = 0; side < 2; ++side) {
    heir.child[side] = old.child[side];
    if (old.child[side] != kNoBlock) blocks_[old.child[side]].parent = with;
  }
}

bool FreeBins::check() const {
  std::size_t seen = 0;
  if (!check_small(&seen)) return false;
  for (std::size_t bin = 0; bin < kTries; ++bin) {
    if ((tries_[bin] != kNoBlock) != ((trie_map_ >> bin) & 1)) return false;
    if (!check_trie(bin, tries_[bin], kNoBlock, &seen)) return false;
  }
  return seen == count_;
}

bool FreeBins::check_small(std::size_t* seen) const {
  for (std::size_t bin = 0; bin < kSmallBins; ++bin) {
    if ((small_[bin] != kNoBlock) != ((small_map_[bin / 64] >> (bin % 64)) & 1)) return false;
    if ((small_map_[bin / 64] != 0) != ((word_map_ >> (bin / 64)) & 1)) return false;
    BlockId before = kNoBlock;
    for (BlockId id = small_[bin]; id != kNoBlock; before = id, id = blocks_[id].list_next) {
      const Block& block = blocks_[id];
      if (block.nbytes != bin * kGranule || block.list_prev != before) return false;
      if (block.state != BlockState::kBinned || ++*seen > count_) return false;
    }
  }
  return true;
}

bool FreeBins::check_trie(std::size_t bin, BlockId node, BlockId parent, std::size_t* seen) const {
  if (node == kNoBlock) return true;
  const Block& top = blocks_[node];
  if (!top.in_trie || top.parent != parent || trie_of(top.nbytes) != bin) return false;
  BlockId before = kNoBlock;
  for (BlockId id = node; id != kNoBlock; before = id, id = blocks_[id].list_next) {
    const Block& block = blocks_[id];
    if (block.nbytes != top.nbytes || block.list_prev != before || block.in_trie != (id == node)) return false;
    if (block.state != BlockState::kBinned || ++*seen > count_) return false;
  }
  return check_trie(bin, top.child[0], node, seen) && check_trie(bin, top.child[1], node, seen);
}

}  // namespace polymux
