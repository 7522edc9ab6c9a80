#include "segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "futex.hpp"
#include "huge_pages.hpp"

namespace polymux {

namespace {

std::string system_message(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

uint32_t tagged(uint16_t generation, uint32_t value) { return uint32_t{generation} << 16 | value; }

}  // namespace

Segment::Segment(uint64_t nbytes) {
  nbytes_ = (nbytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (nbytes_ < kMinSegmentBytes || nbytes_ > (uint64_t{1} << 46)) {
    throw SegmentError("segment_nbytes " + std::to_string(nbytes) + " is outside " + std::to_string(kMinSegmentBytes) +
                       " to 2^46");
  }
  fd_ = memfd_create("polymux-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd_ < 0) throw SegmentError(system_message("memfd_create"));
  // Sealed against resizing: a client that could shrink the file would kill the server with SIGBUS.
  if (ftruncate(fd_, static_cast<off_t>(nbytes_)) != 0 ||
      fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const std::string message = system_message("cannot size the segment");
    ::close(fd_);
    throw SegmentError(message);
  }
  base_ = map_shared(nbytes_, fd_);
  if (base_ == nullptr) {
    const std::string message = system_message("cannot map the segment");
    ::close(fd_);
    throw SegmentError(message);
  }
  placements_ = static_cast<Placement*>(std::calloc(kMaxBuffers, sizeof(Placement)));
  if (placements_ == nullptr) {
    munmap(base_, nbytes_);
    ::close(fd_);
    throw std::bad_alloc();
  }
  SegmentHeader* h = header();
  h->magic = kMagic;
  h->layout_version = kLayoutVersion;
  h->max_buffers = kMaxBuffers;
  h->nbytes = nbytes_;
  h->table_offset = kTableOffset;
  h->data_offset = kDataOffset;
}

Segment::~Segment() {
  munmap(base_, nbytes_);
  std::free(placements_);
  ::close(fd_);
}

uint32_t Segment::open_queue(uint64_t offset, uint32_t capacity) {
  if (!valid_capacity(capacity)) {
    throw SegmentError("queue capacity " + std::to_string(capacity) + " is not a power of two from 16 to 65536");
  }
  unsigned char* region = data(offset, queue_nbytes(capacity));
  if (offset % 64 != 0) throw SegmentError("queue region at " + std::to_string(offset) + " is not aligned to 64");
  std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < kMaxQueues; ++i) {
    if (queues_[i]) continue;
    auto queue = std::make_shared<ServerQueue>();
    queue->view = QueueView(region, capacity);
    queue->capacity = capacity;
    queues_[i] = std::move(queue);
    return i;
  }
  throw SegmentError("the client has " + std::to_string(kMaxQueues) + " open queues; close one first");
}

void Segment::set_gate(uint32_t index, uint32_t word, uint32_t device) {
  if (index >= kMaxJobs) throw SegmentError("there is no gate " + std::to_string(index));
  JobGate& gate = reinterpret_cast<JobGate*>(base_ + kGatesOffset)[index];
  std::atomic_ref(gate.device).store(device, std::memory_order_relaxed);
  gate.word.store(word, std::memory_order_release);
  futex_wake_all(&gate.word);
}

void Segment::close_queue(uint32_t index) {
  std::lock_guard lock(mutex_);
  if (index >= kMaxQueues || !queues_[index]) throw SegmentError("no open queue " + std::to_string(index));
  queues_[index]->open.store(false, std::memory_order_release);
  queues_[index].reset();
}

std::shared_ptr<ServerQueue> Segment::queue(uint32_t index) const {
  std::lock_guard lock(mutex_);
  if (index >= kMaxQueues || !queues_[index]) throw SegmentError("no open queue " + std::to_string(index));
  return queues_[index];
}

unsigned char* Segment::data(uint64_t offset, uint64_t nbytes) const {
  uint64_t end = 0;
  if (offset < kDataOffset || __builtin_add_overflow(offset, nbytes, &end) || end > nbytes_) {
    throw SegmentError("bytes " + std::to_string(offset) + " + " + std::to_string(nbytes) +
                       " are outside the data part of the segment");
  }
  return base_ + offset;
}

uint32_t Segment::location(uint32_t slot) const {
  if (slot >= kMaxBuffers) throw SegmentError("buffer slot " + std::to_string(slot) + " is out of range");
  return placements_[slot].location.load(std::memory_order_acquire) & 0xFFFF;
}

void Segment::set_location(uint32_t slot, uint16_t generation, uint32_t location) {
  if (slot >= kMaxBuffers) throw SegmentError("buffer slot " + std::to_string(slot) + " is out of range");
  const uint32_t value = tagged(generation, location);
  const uint32_t old = placements_[slot].location.exchange(value, std::memory_order_acq_rel);
  entry(slot)->location.store(value, std::memory_order_release);
  const bool was_away = (old & 0xFFFF) != 0;
  const bool is_away = location != 0;
  if (is_away && !was_away) header()->away.fetch_add(1, std::memory_order_release);
  if (!is_away && was_away) header()->away.fetch_sub(1, std::memory_order_release);
}

void Segment::set_shape(uint32_t slot, uint16_t generation, const std::vector<int64_t>& shape) {
  if (slot >= kMaxBuffers) throw SegmentError("buffer slot " + std::to_string(slot) + " is out of range");
  if (shape.size() > POLYMUX_MAX_DIMENSIONS) throw SegmentError("a result has more than 8 dimensions");
  BufferEntry* e = entry(slot);
  {
    std::lock_guard lock(mutex_);
    shapes_[slot] = shape;
  }
  placements_[slot].shaped.store(tagged(generation, 1), std::memory_order_release);
  e->result_ndim = static_cast<int32_t>(shape.size());
  for (size_t i = 0; i < shape.size(); ++i) e->result_shape[i] = shape[i];
  e->shaped.store(tagged(generation, 1), std::memory_order_release);
}

void Segment::forget_shape(uint32_t slot, uint16_t generation) {
  if (slot >= kMaxBuffers) throw SegmentError("buffer slot " + std::to_string(slot) + " is out of range");
  std::atomic<uint32_t>& shaped = placements_[slot].shaped;
  if (shaped.load(std::memory_order_acquire) != tagged(generation, 1)) return;
  shaped.store(tagged(generation, 0), std::memory_order_release);
  entry(slot)->shaped.store(tagged(generation, 0), std::memory_order_release);
}

void Segment::map_foreign(uint64_t offset, uint64_t nbytes, int fd) {
  unsigned char* at = data(offset, nbytes);
  if (offset % kPageBytes != 0 || nbytes % kPageBytes != 0 || nbytes == 0) {
    throw SegmentError("bytes " + std::to_string(offset) + " + " + std::to_string(nbytes) + " are not whole pages");
  }
  if (mmap(at, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED) {
    throw SegmentError(system_message("cannot map granted memory"));
  }
}

void Segment::unmap_foreign(uint64_t offset, uint64_t nbytes) {
  unsigned char* at = data(offset, nbytes);
  if (offset % kPageBytes != 0 || nbytes % kPageBytes != 0 || nbytes == 0) {
    throw SegmentError("bytes " + std::to_string(offset) + " + " + std::to_string(nbytes) + " are not whole pages");
  }
  if (mmap(at, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd_,
           static_cast<off_t>(offset)) == MAP_FAILED) {
    throw SegmentError(system_message("cannot map the segment again"));
  }
}

CheckedRef Segment::buffer(uint32_t slot, uint16_t generation) const {
  CheckedRef ref;
  std::string fault;
  if (!check_ref(BufferRef{slot, generation, POLYMUX_READ, 0}, &ref, &fault)) throw SegmentError(fault);
  return ref;
}

bool Segment::check_ref(const BufferRef& ref, CheckedRef* out, std::string* fault) const {
  if (ref.slot >= kMaxBuffers) {
    *fault = "buffer slot " + std::to_string(ref.slot) + " is out of range";
    return false;
  }
  if (ref.access < 1 || ref.access > 3) {
    *fault = "buffer access " + std::to_string(ref.access) + " is none of read (1), write (2), both (3)";
    return false;
  }
  const BufferEntry* e = entry(ref.slot);
  BufferEntry copy_of;
  std::memcpy(static_cast<void*>(&copy_of), static_cast<const void*>(e), offsetof(BufferEntry, location));
  asm volatile("" ::: "memory");  // from here on only the copy counts
  out->slot = ref.slot;
  out->generation = ref.generation;
  out->access = ref.access;
  out->dtype = copy_of.dtype;
  out->ndim = copy_of.ndim;
  out->offset = copy_of.offset;
  out->nbytes = copy_of.nbytes;
  if ((copy_of.generation & 0xFFFF) != ref.generation || copy_of.nbytes == 0) {
    *fault = "buffer " + std::to_string(ref.slot) + " (generation " + std::to_string(ref.generation) +
             ") is not a live buffer of this client";
    return false;
  }
  uint64_t needed = 0;
  if (!array_nbytes(copy_of.dtype, copy_of.ndim, copy_of.shape, &needed)) {
    *fault = "buffer " + std::to_string(ref.slot) + " has an impossible dtype or shape";
    return false;
  }
  uint64_t end = 0;
  if (needed > copy_of.nbytes || copy_of.offset < kDataOffset || copy_of.offset % 16 != 0 ||
      __builtin_add_overflow(copy_of.offset, copy_of.nbytes, &end) || end > nbytes_) {
    *fault = "buffer " + std::to_string(ref.slot) + " (offset " + std::to_string(copy_of.offset) + ", " +
             std::to_string(copy_of.nbytes) + " bytes, its shape needs " + std::to_string(needed) +
             ") is outside the segment";
    return false;
  }
  for (int32_t i = 0; i < copy_of.ndim; ++i) out->shape[i] = copy_of.shape[i];
  const Placement& placement = placements_[ref.slot];
  const uint32_t where = placement.location.load(std::memory_order_acquire);
  // A new buffer in a slot whose earlier one is still on a device also takes the slow path: that copy must go first.
  out->location = static_cast<uint8_t>(where & 0xFF);
  if ((ref.access & POLYMUX_READ) != 0 &&
      placement.shaped.load(std::memory_order_acquire) == tagged(ref.generation, 1)) {
    std::lock_guard lock(mutex_);
    const auto found = shapes_.find(ref.slot);
    uint64_t shaped_nbytes = 0;
    if (found != shapes_.end() &&
        array_nbytes(out->dtype, static_cast<int32_t>(found->second.size()), found->second.data(), &shaped_nbytes) &&
        shaped_nbytes <= copy_of.nbytes) {
      out->ndim = static_cast<int32_t>(found->second.size());
      for (int32_t i = 0; i < out->ndim; ++i) out->shape[i] = found->second[static_cast<size_t>(i)];
    }
  }
  return true;
}

void Segment::read_task(const TaskSlot& slot, uint64_t sequence, CheckedTask* task) const {
  std::memcpy(&task->header, &slot.header, sizeof(TaskHeader));
  asm volatile("" ::: "memory");
  task->status = POLYMUX_OK;
  task->fault.clear();
  TaskHeader& h = task->header;
  if (h.n_buffers > POLYMUX_MAX_BUFFERS || h.arguments_nbytes > POLYMUX_MAX_ARGUMENTS || h.sequence != sequence) {
    task->status = POLYMUX_INVALID_TASK;
    task->fault = "descriptor with " + std::to_string(h.n_buffers) + " buffers, " + std::to_string(h.arguments_nbytes) +
                  " bytes of arguments and sequence " + std::to_string(h.sequence) +
                  " where at most 16, at most 256 and " + std::to_string(sequence) + " are possible";
    h.n_buffers = 0;
    h.arguments_nbytes = 0;
    h.sequence = sequence;
    return;
  }
  BufferRef refs[POLYMUX_MAX_BUFFERS];
  const size_t refs_nbytes = h.n_buffers * sizeof(BufferRef);
  std::memcpy(refs, slot.payload, refs_nbytes);
  std::memcpy(task->arguments, slot.payload + refs_nbytes, h.arguments_nbytes);
  asm volatile("" ::: "memory");
  for (uint32_t i = 0; i < h.n_buffers; ++i) {
    if (!check_ref(refs[i], &task->refs[i], &task->fault)) {
      task->status = POLYMUX_BAD_BUFFER;
      h.n_buffers = static_cast<uint8_t>(i);
      return;
    }
  }
}

void Segment::complete(ServerQueue* queue, uint64_t sequence, int32_t status, const char* text, size_t text_nbytes) {
  uint32_t error = kNoError;
  if (status != POLYMUX_OK) {
    error = queue->next_error++ % kErrorSlots;
    ErrorSlot& slot = queue->view.errors[error];
    const size_t n = text_nbytes < kErrorTextBytes ? text_nbytes : kErrorTextBytes;
    std::memcpy(slot.text, text, n);
    slot.nbytes = static_cast<uint32_t>(n);
    slot.sequence = sequence;
    queue->view.header->failed.store(++queue->failed, std::memory_order_relaxed);
  }
  Completion& record = queue->view.completions[(sequence - 1) & queue->view.mask];
  record.sequence = sequence;
  record.status = status;
  record.error = error;
  queue->completed = sequence;
  queue->view.header->completed.store(sequence, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint64_t wanted = queue->view.header->wanted.load(std::memory_order_relaxed);
  if (wanted != queue->served && wanted <= sequence) [[unlikely]] {
    queue->served = wanted;
    SegmentHeader* h = header();
    h->completion.fetch_add(1, std::memory_order_release);
    futex_wake_all(&h->completion);
  }
}

}  // namespace polymux
