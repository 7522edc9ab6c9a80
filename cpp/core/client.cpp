#include "client.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "blocking.hpp"
#include "clock.hpp"
#include "futex.hpp"

namespace polymux {

namespace {

constexpr int64_t kSpinUnreleasedNs = 2'000;
constexpr int64_t kRefillNs = 5'000;
constexpr int64_t kAliveCheckNs = 200'000'000;  // how often a sleeping client asks whether the server still lives

// What remains of a time-out that began at `start`; -1 stays for ever.
int64_t remaining(int64_t start_ns, int64_t timeout_ns) {
  return timeout_ns < 0 ? -1 : std::max<int64_t>(0, timeout_ns - (now_ns() - start_ns));
}

polymux_status status_of(const std::string& code) {
  static const std::pair<const char*, polymux_status> table[] = {{"InvalidRequest", POLYMUX_INVALID_REQUEST},
                                                                 {"ProtocolMismatch", POLYMUX_PROTOCOL_MISMATCH},
                                                                 {"PermissionDenied", POLYMUX_PERMISSION_DENIED},
                                                                 {"UnknownKernel", POLYMUX_UNKNOWN_KERNEL},
                                                                 {"QueueFull", POLYMUX_QUEUE_FULL},
                                                                 {"SegmentFull", POLYMUX_SEGMENT_FULL},
                                                                 {"Closed", POLYMUX_CLOSED},
                                                                 {"OutOfDeviceMemory", POLYMUX_OUT_OF_MEMORY},
                                                                 {"NoDevice", POLYMUX_NO_DEVICE},
                                                                 {"ServerGone", POLYMUX_SERVER_GONE},
                                                                 {"TimeoutError", POLYMUX_TIMEOUT},
                                                                 {"DeviceFailed", POLYMUX_DEVICE_FAILED}};
  for (const auto& [name, status] : table) {
    if (code == name) return status;
  }
  return POLYMUX_INVALID_REQUEST;
}

void close_all(const std::vector<int>& fds) {
  for (const int fd : fds) ::close(fd);
}

uint64_t number(const Message& reply, const char* key) {
  const auto found = reply.fields.find(key);
  if (found == reply.fields.end()) {
    throw Failure(POLYMUX_PROTOCOL_MISMATCH, std::string("the server's reply lacks ") + key);
  }
  return std::stoull(found->second);
}

std::string text(const Message& reply, const char* key) {
  const auto found = reply.fields.find(key);
  return found == reply.fields.end() ? std::string() : found->second;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> out;
  size_t at = 0;
  while (at < list.size()) {
    const size_t comma = std::min(list.find(',', at), list.size());
    out.push_back(list.substr(at, comma - at));
    at = comma + 1;
  }
  return out;
}

uint64_t whole_pages(uint64_t nbytes) { return (nbytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

}  // namespace

// ---------------------------------------------------------------- Client

std::shared_ptr<Client> Client::connect(const std::string& path, const std::string& name, uint64_t segment_nbytes) {
  const std::string at = path.empty() ? default_socket_path() : path;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (at.size() >= sizeof(address.sun_path)) {
    throw Failure(POLYMUX_INVALID_REQUEST, "socket path of more than 107 characters: " + at);
  }
  std::memcpy(address.sun_path, at.c_str(), at.size() + 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) throw Failure(POLYMUX_SYSTEM_ERROR, std::string("socket: ") + std::strerror(errno));
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    const int error = errno;
    ::close(fd);
    throw Failure(POLYMUX_NO_SERVER,
                  "no Polymux server at " + at + " (" + std::strerror(error) + "); start one with `polymux up`");
  }
  return adopt(fd, name, segment_nbytes);
}

std::shared_ptr<Client> Client::adopt(int socket, const std::string& name, uint64_t segment_nbytes) {
  return std::shared_ptr<Client>(new Client(socket, name, segment_nbytes));
}

Client::Client(int socket, const std::string& name, uint64_t segment_nbytes) : pid_(getpid()), socket_(socket) {
  const int size = 4 << 20;
  setsockopt(socket_, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
  try {
    Message reply = request("hello", {{"version", std::to_string(kProtocolVersion)},
                                      {"layout", std::to_string(kLayoutVersion)},
                                      {"name", name},
                                      {"segment_nbytes", std::to_string(segment_nbytes)}});
    session_ = text(reply, "session");
    devices_ = split(text(reply, "devices"));
    map_segment(reply);
  } catch (...) {
    ::close(socket_);
    throw;
  }
}

void Client::map_segment(const Message& reply) {
  if (reply.fds.size() != 1) {
    close_all(reply.fds);
    throw Failure(POLYMUX_PROTOCOL_MISMATCH, "the server's greeting carries no memory");
  }
  segment_fd_ = reply.fds[0];
  nbytes_ = number(reply, "segment_nbytes");
  struct stat info{};
  void* memory = MAP_FAILED;
  if (nbytes_ >= kMinSegmentBytes && fstat(segment_fd_, &info) == 0 && static_cast<uint64_t>(info.st_size) >= nbytes_) {
    memory = mmap(nullptr, nbytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, segment_fd_, 0);
  }
  if (memory == MAP_FAILED) {
    ::close(segment_fd_);
    throw Failure(POLYMUX_SYSTEM_ERROR, "cannot map the segment of " + std::to_string(nbytes_) + " bytes");
  }
  base_ = static_cast<unsigned char*>(memory);
  const SegmentHeader* h = header();
  if (h->magic != kMagic || h->layout_version != kLayoutVersion || h->data_offset != kDataOffset) {
    munmap(base_, nbytes_);
    ::close(segment_fd_);
    throw Failure(POLYMUX_PROTOCOL_MISMATCH, "the server's segment has layout version " +
                                                 std::to_string(h->layout_version) + ", this library " +
                                                 std::to_string(kLayoutVersion) + "; install the same Polymux on both");
  }
  allocator_ = std::make_unique<Allocator>(kDataOffset, nbytes_ - kDataOffset);
}

Client::~Client() {
  close();
  munmap(base_, nbytes_);
  ::close(segment_fd_);
  ::close(socket_);
}

bool Client::forked() const { return getpid() != pid_; }

void Client::close() {
  if (closed_.exchange(true) || forked()) return;  // the connection is the parent's
  std::vector<std::weak_ptr<Queue>> queues;
  {
    std::lock_guard lock(memory_mutex_);
    queues.swap(queues_);
    leaving_.clear();
  }
  for (auto& weak : queues) {
    if (auto queue = weak.lock()) queue->close();
  }
  shutdown(socket_, SHUT_RDWR);
  futex_wake_all(&header()->completion);
}

void Client::check_open() const {
  if (forked()) throw Failure(POLYMUX_CLOSED, "the client belongs to the process that forked; connect again here");
  if (closed()) throw Failure(POLYMUX_CLOSED, "the client is closed");
}

bool Client::server_gone() const {
  if (gone_.load(std::memory_order_relaxed)) return true;
  pollfd p{socket_, POLLIN, 0};
  if (poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR)) != 0) gone_.store(true, std::memory_order_relaxed);
  return gone_.load(std::memory_order_relaxed);
}

Message Client::request(const std::string& verb, Fields fields, const std::vector<int>& fds) {
  check_open();
  BlockingSection blocking;
  std::lock_guard lock(request_mutex_);
  const std::string id = std::to_string(++request_id_);
  fields["id"] = id;
  Message reply;
  try {
    send_message(socket_, encode_message(verb, fields), fds);
    do {
      close_all(reply.fds);
      reply = receive_message(socket_);
    } while (text(reply, "id") != id);
  } catch (const Failure& failure) {
    if (failure.status == POLYMUX_SERVER_GONE) gone_.store(true);
    throw;
  }
  if (reply.verb == "ok") return reply;
  close_all(reply.fds);
  throw Failure(status_of(text(reply, "code")), text(reply, "message"));
}

void Client::notify(const std::string& verb, const Fields& fields) {
  if (closed() || forked()) return;
  BlockingSection blocking;
  std::lock_guard lock(request_mutex_);
  try {
    send_message(socket_, encode_message(verb, fields), {});
  } catch (const Failure&) {
    gone_.store(true);  // whoever waits next is told
  }
}

uint32_t Client::kernel_id(const std::string& name) {
  {
    std::lock_guard lock(memory_mutex_);
    if (const auto found = kernels_.find(name); found != kernels_.end()) return found->second;
  }
  const auto id = static_cast<uint32_t>(number(request("kernel", {{"name", name}}), "kernel_id"));
  std::lock_guard lock(memory_mutex_);
  kernels_[name] = id;
  return id;
}

uint32_t Client::device_hint(const std::string& device) const {
  const auto at = std::find(devices_.begin(), devices_.end(), device);
  if (at == devices_.end()) {
    std::string known;
    for (const auto& d : devices_) known += (known.empty() ? "" : ", ") + d;
    throw Failure(POLYMUX_INVALID_REQUEST, "no device \"" + device + "\"; the server has " + known);
  }
  return static_cast<uint32_t>(at - devices_.begin()) + 1;
}

bool Client::completion_wait(uint32_t value, int64_t timeout_ns) {
  return futex_wait(&header()->completion, value, timeout_ns);
}

Allocator::Stats Client::memory() const {
  std::lock_guard lock(memory_mutex_);
  return allocator_->stats();
}

polymux_status Client::wait_progress(Progress& progress, uint64_t sequence, int64_t timeout_ns, int64_t spin_ns) {
  if (progress.done(sequence)) return POLYMUX_OK;
  if (timeout_ns == 0) return POLYMUX_TIMEOUT;
  // Most short tasks end within this time, and giving up the interpreter's lock costs as much.
  for (Spin spin(std::min(spin_ns, kSpinUnreleasedNs)); spin.again(progress.moments_to(sequence));) {
    if (progress.done(sequence)) return POLYMUX_OK;
  }
  BlockingSection blocking;
  const int64_t start = now_ns();
  for (Spin spin(timeout_ns < 0 ? spin_ns : std::min(spin_ns, timeout_ns));
       spin.again(progress.moments_to(sequence));) {
    if (progress.done(sequence)) return POLYMUX_OK;
  }
  polymux_status status = POLYMUX_OK;
  for (;;) {
    const uint32_t value = completion_value();
    if (progress.done(sequence)) break;
    progress.want(sequence);
    if (progress.done(sequence)) break;
    const int64_t left = remaining(start, timeout_ns);
    if (left == 0) {
      status = POLYMUX_TIMEOUT;
      break;
    }
    const bool slept_out = !completion_wait(value, left < 0 ? kAliveCheckNs : std::min(left, kAliveCheckNs));
    if (slept_out && server_gone()) {
      status = progress.done(sequence) ? POLYMUX_OK : POLYMUX_SERVER_GONE;
      break;
    }
  }
  return status;
}

// ---------------------------------------------------------------- memory

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
  buffer->publish();
  return buffer;
}

std::shared_ptr<Buffer> Client::import_buffer(const std::string& token) {
  check_open();
  const Message info = request("import_info", {{"token", token}});
  const auto dtype = static_cast<int32_t>(number(info, "dtype"));
  std::vector<int64_t> shape;
  for (const std::string& d : split(text(info, "shape"))) shape.push_back(std::stoll(d));
  std::shared_ptr<Buffer> buffer = allocate(dtype, shape, true);
  const uint64_t pages = number(info, "nbytes");
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
      notify("release", {{"slot", std::to_string(leaving.slot)}, {"generation", std::to_string(generation)}});
    }
    std::lock_guard lock(memory_mutex_);
    e->generation = (generation + 1) & 0xFFFF;
    e->nbytes = 0;
    allocator_->release(leaving.offset);
    free_slots_.push_back(leaving.slot);
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
    if (!buffer->bring_home(remaining(start, timeout_ns))) return false;
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

// ---------------------------------------------------------------- Queue

Queue::Queue(std::shared_ptr<Client> client, const QueueOptions& options)
    : client_(std::move(client)), capacity_(options.capacity), raise_when_full_(options.raise_when_full) {
  if (!valid_capacity(capacity_)) {
    throw Failure(POLYMUX_INVALID_REQUEST,
                  "capacity " + std::to_string(capacity_) + " is not a power of two from 16 to 65536");
  }
  client_->collect();
  {
    std::lock_guard lock(client_->memory_mutex_);
    region_ = client_->allocate_block(queue_nbytes(capacity_), 128);
  }
  view_ = QueueView(client_->base() + region_, capacity_);
  std::memset(static_cast<void*>(view_.header), 0, sizeof(QueueHeader));
  progress_ = std::make_shared<Progress>();
  progress_->header = view_.header;
  try {
    const Message reply = client_->request("queue_open", {{"offset", std::to_string(region_)},
                                                          {"capacity", std::to_string(capacity_)},
                                                          {"name", options.name},
                                                          {"priority", std::to_string(options.priority)},
                                                          {"device", options.device}});
    index_ = static_cast<uint32_t>(number(reply, "index"));
    id_ = text(reply, "queue");
    name_ = options.name.empty() ? id_ : options.name;
  } catch (...) {
    client_->free_region(region_);
    progress_->closed.store(true);
    throw;
  }
}

Queue::~Queue() { close(); }

void Queue::close() {
  if (progress_->closed.load(std::memory_order_acquire)) return;
  bool released = false;
  if (!client_->closed() && !client_->forked()) {
    try {
      client_->request("queue_close", {{"index", std::to_string(index_)}});  // answered when no thread looks at it
      released = true;
    } catch (const Failure&) {
      released = client_->server_gone();
    }
  }
  reap();
  completed_at_close_ = view_.header->completed.load(std::memory_order_acquire);
  progress_->closed.store(true, std::memory_order_release);
  if (released) client_->free_region(region_);
}

void Queue::reap() {
  const uint64_t completed = std::min(view_.header->completed.load(std::memory_order_acquire), tail_);
  // The records are other cache lines, and only failures make them worth a look.
  if (view_.header->failed.load(std::memory_order_relaxed) == failures_read_) [[likely]] {
    reaped_ = completed;
    return;
  }
  while (reaped_ < completed) {
    const Completion& record = view_.completions[reaped_ & view_.mask];
    ++reaped_;
    if (record.status == POLYMUX_OK) [[likely]]
      continue;
    ++failures_read_;
    if (errors_.size() >= 4096) errors_.erase(errors_.begin());  // nobody has asked for so many
    TaskError error{static_cast<polymux_status>(record.status), {}, false};
    if (record.error < kErrorSlots) {
      const ErrorSlot& slot = view_.errors[record.error];
      if (slot.sequence == reaped_) error.text.assign(slot.text, std::min(slot.nbytes, kErrorTextBytes));
    }
    if (error.text.empty()) error.text = "the text was overwritten by those of later failures";
    errors_.emplace(reaped_, std::move(error));
  }
}

void Queue::wait_for_room() {
  if (closed()) throw Failure(POLYMUX_CLOSED, "queue " + name_ + " is closed");
  reap();
  while (tail_ - reaped_ >= capacity_) {
    if (raise_when_full_) {
      throw Failure(POLYMUX_QUEUE_FULL, "queue " + name_ + " has " + std::to_string(capacity_) +
                                            " tasks in flight; wait for some, or open it with a larger capacity");
    }
    if (wait_done(reaped_ + 1, -1) == POLYMUX_SERVER_GONE) throw Failure(POLYMUX_SERVER_GONE, "the server is gone");
    // One place is enough to go on, but who follows the server at the distance of one place makes both of them wait for
    // each other's cache lines at every task.
    for (Spin spin(kRefillNs); !done(reaped_ + capacity_ / 8) && spin.again(Progress::kMostMoments);) {
    }
    if (closed()) throw Failure(POLYMUX_CLOSED, "queue " + name_ + " is closed");
    reap();
  }
}

// Once for each time that a thread has gone to sleep: it looks at all rings before it sleeps again.
void Queue::ring_doorbell(uint64_t sleepers) {
  if (client_->rung_.load(std::memory_order_relaxed) == sleepers) return;
  SegmentHeader* h = client_->header();
  h->doorbell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(&h->doorbell);
  client_->rung_.store(sleepers, std::memory_order_relaxed);
}

polymux_status Queue::wait_done(uint64_t sequence, int64_t timeout_ns, int64_t spin_ns) const {
  return client_->wait_progress(*progress_, sequence, timeout_ns, spin_ns);
}

TaskError* Queue::error(uint64_t sequence) {
  if (closed()) {
    if (sequence > completed_at_close_) return &cancelled_;
  } else {
    reap();
  }
  const auto found = errors_.find(sequence);
  if (found == errors_.end()) return nullptr;
  found->second.observed = true;
  return &found->second;
}

std::pair<uint64_t, const TaskError*> Queue::first_unobserved() {
  if (!closed()) reap();
  std::pair<uint64_t, TaskError*> first{0, nullptr};
  for (auto& [sequence, error] : errors_) {
    if (!error.observed && (first.second == nullptr || sequence < first.first)) first = {sequence, &error};
    error.observed = true;
  }
  return first;
}

// ---------------------------------------------------------------- Buffer

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
    const polymux_status status = client_->wait_progress(progress, sequence, remaining(start, timeout_ns), 20'000);
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
  if (!queue) queue = client_->open_queue({"home", {}, 0, 16, false});
  Buffer* self = this;
  const uint8_t access = POLYMUX_READ;
  const uint64_t sequence = queue->submit(kToHostKernel, 1, &self, &access, "", 0, {});
  const polymux_status status = queue->wait_done(sequence, remaining(start, timeout_ns));
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
  token_ = text(reply, "token");
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
