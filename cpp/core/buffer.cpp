#include "buffer.hpp"

#include <sys/mman.h>

#include <algorithm>

#include "client.hpp"
#include "clock.hpp"
#include "queue.hpp"

namespace polymux {

Buffer::Buffer(std::shared_ptr<Client> client, int32_t dtype, const std::vector<int64_t>& shape, uint64_t nbytes)
    : client_(std::move(client)), dtype_(dtype), ndim_(static_cast<int32_t>(shape.size())), nbytes_(nbytes) {
  std::copy(shape.begin(), shape.end(), shape_.begin());
}

Buffer::~Buffer() { close(); }

void Buffer::publish() {
  BufferEntry* e = client_->entry(slot_);
  generation_ = static_cast<uint16_t>(e->generation & 0xFFFF);
  e->dtype = dtype_;
  e->ndim = ndim_;
  e->offset = offset_;
  e->nbytes = std::max(block_nbytes_, nbytes_);
  std::copy(shape_.begin(), shape_.end(), e->shape);
  closed_ = false;
  freed_ = false;
}

void Buffer::close() {
  closed_ = true;
  if (freed_ || views_ != 0) return;
  freed_ = true;
  client_->free_buffer(this);
}

void Buffer::check_open() const {
  client_->check_open();
  if (closed_) throw Failure(POLYMUX_CLOSED, "the buffer is closed");
}

void Buffer::used_by_another(const std::shared_ptr<Progress>& progress, uint64_t sequence) {
  if (last_progress_) {
    std::erase_if(other_uses_,
                  [&](const Client::Use& use) { return use.first == progress || use.first->done(use.second); });
    if (!last_progress_->done(last_sequence_)) other_uses_.emplace_back(std::move(last_progress_), last_sequence_);
  }
  last_progress_ = progress;
  last_sequence_ = sequence;
}

bool Buffer::idle() const {
  if (last_progress_ && !last_progress_->done(last_sequence_)) return false;
  return std::all_of(other_uses_.begin(), other_uses_.end(),
                     [](const Client::Use& use) { return use.first->done(use.second); });
}

bool Buffer::wait(int64_t timeout_ns) const {
  const int64_t start = now_ns();
  const auto wait_one = [&](Progress& progress, uint64_t sequence) {
    const polymux_status status = client_->wait_progress(progress, sequence, time_left(start, timeout_ns), 20'000);
    if (status == POLYMUX_SERVER_GONE) throw Failure(status, "the server is gone");
    return status == POLYMUX_OK;
  };
  if (last_progress_ && !wait_one(*last_progress_, last_sequence_)) return false;
  for (const auto& [progress, sequence] : other_uses_) {
    if (!wait_one(*progress, sequence)) return false;
  }
  return true;
}

bool Buffer::away() const {
  const uint32_t location = client_->entry(slot_)->location.load(std::memory_order_acquire);
  return location >> 16 == generation_ && (location & 0xFFFF) != 0;
}

bool Buffer::bring_home(int64_t timeout_ns) {
  if (closed_) throw Failure(POLYMUX_CLOSED, "the buffer is closed");
  const int64_t start = now_ns();
  if (!wait(timeout_ns)) return false;
  if (!away()) return true;
  client_->check_open();
  std::shared_ptr<Queue> queue = client_->queue_for(last_progress_.get());
  if (!queue) {
    QueueOptions options;
    options.name = "home";
    options.capacity = kMinCapacity;
    queue = client_->open_queue(options);
  }
  Buffer* self = this;
  const uint8_t access = POLYMUX_READ;
  const uint64_t sequence = queue->submit(kToHostKernel, 1, &self, &access, "", 0, {});
  const polymux_status status = queue->wait_done(sequence, time_left(start, timeout_ns));
  if (status == POLYMUX_TIMEOUT) return false;
  if (status != POLYMUX_OK) throw Failure(status, "the server is gone");
  if (const TaskError* error = queue->error(sequence)) throw Failure(error->status, error->text);
  return true;
}

std::vector<int64_t> Buffer::shape() const {
  const BufferEntry* e = client_->entry(slot_);
  if (!closed_ && e->shaped.load(std::memory_order_acquire) == (uint32_t{generation_} << 16 | 1) &&
      e->result_ndim >= 0 && e->result_ndim <= POLYMUX_MAX_DIMENSIONS) {
    uint64_t nbytes = 0;
    if (array_nbytes(dtype_, e->result_ndim, e->result_shape, &nbytes) && nbytes <= std::max(nbytes_, block_nbytes_)) {
      return {e->result_shape, e->result_shape + e->result_ndim};
    }
  }
  return declared_shape();
}

std::string Buffer::export_buffer() {
  check_open();
  if (foreign_ && token_.empty()) {
    throw Failure(POLYMUX_INVALID_REQUEST, "an imported buffer cannot be exported again; ask its owner for a grant");
  }
  if (!token_.empty()) return token_;
  if (offset_ % kPageBytes != 0 || block_nbytes_ % kPageBytes != 0) {
    throw Failure(POLYMUX_INVALID_REQUEST, "a buffer of " + std::to_string(nbytes_) +
                                               " bytes shares its page with others and cannot be granted; allocate it "
                                               "with shareable=True (POLYMUX_SHAREABLE)");
  }
  bring_home(-1);
  const Message reply =
      client_->request("export", {{"slot", std::to_string(slot_)}, {"generation", std::to_string(generation_)}});
  if (reply.fds.size() != 1 ||
      mmap(data(), block_nbytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, reply.fds[0], 0) == MAP_FAILED) {
    close_all(reply.fds);
    throw Failure(POLYMUX_SYSTEM_ERROR, "cannot map the granted memory");
  }
  close_all(reply.fds);
  foreign_ = true;
  token_ = reply.text("token");
  return token_;
}

void Buffer::revoke() {
  check_open();
  if (token_.empty()) throw Failure(POLYMUX_INVALID_REQUEST, "the buffer has not been exported");
  client_->request("revoke", {{"token", token_}});
}

void Buffer::add_view() {
  if (views_++ == 0) {
    std::lock_guard lock(client_->memory_mutex_);
    client_->viewed_.push_back(this);
  }
}

void Buffer::drop_view() {
  if (--views_ != 0) return;
  {
    std::lock_guard lock(client_->memory_mutex_);
    std::erase(client_->viewed_, this);
  }
  if (closed_) close();
}

}  // namespace polymux
