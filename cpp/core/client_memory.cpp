// The client's memory: blocks and slots of buffers, what happens to them when they are freed, and bringing home what
// somebody looks at.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "buffer.hpp"
#include "client.hpp"
#include "clock.hpp"
#include "queue.hpp"

namespace polymux {

namespace {

uint64_t whole_pages(uint64_t nbytes) { return (nbytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

int64_t whole_number(const std::string& digits) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    throw Failure(POLYMUX_PROTOCOL_MISMATCH, "the server's reply has \"" + digits + "\" for a number");
  }
  return value;
}

}  // namespace

uint64_t Client::allocate_block(uint64_t nbytes, uint64_t alignment) {
  std::optional<uint64_t> offset = allocator_->allocate(nbytes, alignment);
  if (!offset) {
    const auto s = allocator_->stats();
    throw Failure(POLYMUX_SEGMENT_FULL, "no room for " + std::to_string(nbytes) +
                                            " bytes in the segment: " + std::to_string(s.live_nbytes) + " in use, " +
                                            std::to_string(s.free_nbytes) + " free, the largest piece " +
                                            std::to_string(s.largest_free_nbytes) +
                                            "; free buffers, or connect with a larger segment_nbytes");
  }
  return *offset;
}

uint32_t Client::take_slot() {
  if (!free_slots_.empty()) {
    const uint32_t slot = free_slots_.back();
    free_slots_.pop_back();
    return slot;
  }
  if (next_slot_ == kMaxBuffers) {
    throw Failure(POLYMUX_SEGMENT_FULL, "the client has " + std::to_string(kMaxBuffers) + " live buffers; free some");
  }
  return next_slot_++;
}

std::shared_ptr<Buffer> Client::allocate(int32_t dtype, const std::vector<int64_t>& shape, bool shareable) {
  check_open();
  uint64_t nbytes = 0;
  if (shape.size() > POLYMUX_MAX_DIMENSIONS) {
    throw Failure(POLYMUX_INVALID_REQUEST, "a buffer has at most 8 dimensions, not " + std::to_string(shape.size()));
  }
  if (!array_nbytes(dtype, static_cast<int32_t>(shape.size()), shape.data(), &nbytes)) {
    throw Failure(POLYMUX_INVALID_REQUEST, "impossible dtype or shape: a dimension is negative or the size overflows");
  }
  std::shared_ptr<Buffer> buffer(new Buffer(shared_from_this(), dtype, shape, nbytes));
  collect();
  std::lock_guard lock(memory_mutex_);
  uint64_t block = std::max<uint64_t>(nbytes, 1);
  if (shareable) block = whole_pages(block);
  buffer->offset_ = allocate_block(block, shareable ? kPageBytes : 64);
  buffer->block_nbytes_ = allocator_->usable_nbytes(buffer->offset_);
  try {
    buffer->slot_ = take_slot();
  } catch (...) {
    allocator_->release(buffer->offset_);
    throw;
  }
  huge_pages_->back(buffer->offset_, nbytes);
  buffer->publish();
  return buffer;
}

std::shared_ptr<Buffer> Client::import_buffer(const std::string& token) {
  check_open();
  const Message info = request("import_info", {{"token", token}});
  const auto dtype = static_cast<int32_t>(info.number("dtype"));
  std::vector<int64_t> shape;
  for (const std::string& d : split_list(info.text("shape"))) shape.push_back(whole_number(d));
  std::shared_ptr<Buffer> buffer = allocate(dtype, shape, true);
  const uint64_t pages = info.number("nbytes");
  if (buffer->block_nbytes_ < pages) {  // the granted block is larger than the array in it
    std::lock_guard lock(memory_mutex_);
    allocator_->release(buffer->offset_);
    buffer->offset_ = allocate_block(pages, kPageBytes);
    buffer->block_nbytes_ = allocator_->usable_nbytes(buffer->offset_);
    buffer->publish();
  }
  buffer->block_nbytes_ = pages;
  const Message reply = request("import", {{"token", token},
                                           {"offset", std::to_string(buffer->offset_)},
                                           {"slot", std::to_string(buffer->slot_)},
                                           {"generation", std::to_string(buffer->generation_)}});
  if (reply.fds.size() != 1 ||
      mmap(buffer->data(), pages, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, reply.fds[0], 0) == MAP_FAILED) {
    close_all(reply.fds);
    throw Failure(POLYMUX_SYSTEM_ERROR, "cannot map the granted memory");
  }
  close_all(reply.fds);
  buffer->foreign_ = true;
  return buffer;
}

void Client::free_buffer(Buffer* buffer) {
  Leaving leaving{buffer->slot_, buffer->offset_, buffer->block_nbytes_, buffer->foreign_,
                  std::move(buffer->other_uses_)};
  if (buffer->last_progress_) leaving.uses.emplace_back(std::move(buffer->last_progress_), buffer->last_sequence_);
  {
    std::lock_guard lock(memory_mutex_);
    std::erase(viewed_, buffer);
    leaving_.push_back(std::move(leaving));
  }
  collect();
}

// Gives back what has left and is no longer in use.
void Client::collect() {
  std::vector<Leaving> ready;
  {
    std::lock_guard lock(memory_mutex_);
    if (leaving_.empty()) return;
    const auto in_use = [](const Leaving& leaving) {
      return std::any_of(leaving.uses.begin(), leaving.uses.end(),
                         [](const Use& use) { return !use.first->done(use.second); });
    };
    const auto first = std::stable_partition(leaving_.begin(), leaving_.end(), in_use);
    ready.assign(std::make_move_iterator(first), std::make_move_iterator(leaving_.end()));
    leaving_.erase(first, leaving_.end());
  }
  give_back(std::move(ready));
}

void Client::give_back(std::vector<Leaving> leavings) {
  for (const Leaving& leaving : leavings) {
    BufferEntry* e = entry(leaving.slot);
    const uint32_t generation = e->generation & 0xFFFF;
    const uint32_t location = e->location.load(std::memory_order_acquire);
    if (leaving.foreign) {
      if (!unshare(leaving)) continue;  // the server is gone, and with it any use for the range
    } else if (location >> 16 == generation && (location & 0xFFFF) != 0) {
      release(leaving.slot, generation);
    }
    std::lock_guard lock(memory_mutex_);
    e->generation = (generation + 1) & 0xFFFF;
    e->nbytes = 0;
    allocator_->release(leaving.offset);
    free_slots_.push_back(leaving.slot);
  }
}

// Gives back the device memory of a freed buffer; on return no copy of it writes to its range any more.
void Client::release(uint32_t slot, uint32_t generation) {
  try {
    request("release", {{"slot", std::to_string(slot)}, {"generation", std::to_string(generation)}});
  } catch (const Failure&) {
    // The connection has ended, and with it every copy for this client.
  }
}

// Puts the segment's own pages under the range again, on both sides.
bool Client::unshare(const Leaving& leaving) {
  try {
    const uint32_t generation = entry(leaving.slot)->generation & 0xFFFF;
    request("unshare", {{"slot", std::to_string(leaving.slot)}, {"generation", std::to_string(generation)}});
  } catch (const Failure&) {
    return false;
  }
  return mmap(base_ + leaving.offset, leaving.block_nbytes, PROT_READ | PROT_WRITE,
              MAP_SHARED | MAP_FIXED | MAP_NORESERVE, segment_fd_, static_cast<off_t>(leaving.offset)) != MAP_FAILED;
}

void Client::free_region(uint64_t offset) {
  std::lock_guard lock(memory_mutex_);
  allocator_->release(offset);
}

std::shared_ptr<Queue> Client::queue_for(const Progress* progress) {
  std::lock_guard lock(memory_mutex_);
  std::shared_ptr<Queue> any;
  for (auto& weak : queues_) {
    auto queue = weak.lock();
    if (!queue || queue->closed()) continue;
    if (queue->progress_.get() == progress) return queue;
    any = std::move(queue);
  }
  return any;
}

bool Client::bring_views_home(int64_t timeout_ns) {
  if (!anything_away()) return true;
  const int64_t start = now_ns();
  std::vector<std::shared_ptr<Buffer>> away;
  {
    std::lock_guard lock(memory_mutex_);
    for (Buffer* buffer : viewed_) {
      if (!buffer->closed() && buffer->away() && buffer->idle()) away.push_back(buffer->shared_from_this());
    }
  }
  for (const auto& buffer : away) {
    if (!buffer->bring_home(time_left(start, timeout_ns))) return false;
  }
  return true;
}

std::shared_ptr<Queue> Client::open_queue(const QueueOptions& options) {
  check_open();
  auto queue = std::make_shared<Queue>(shared_from_this(), options);
  std::lock_guard lock(memory_mutex_);
  std::erase_if(queues_, [](const auto& weak) { return weak.expired(); });
  queues_.push_back(queue);
  return queue;
}

}  // namespace polymux
