#include "client.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
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
#include "queue.hpp"

namespace polymux {

namespace {

constexpr int64_t kSpinUnreleasedNs = 2'000;
constexpr int64_t kShortWaitNs = 1'000'000;
constexpr int64_t kCrowdedNs = 50'000;
constexpr uint32_t kSleepsWhenCrowded = 32;
constexpr int64_t kAliveCheckNs = 200'000'000;  // how often a sleeping client asks whether the server still lives

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

}  // namespace

std::shared_ptr<Client> Client::connect(const std::string& path, const ClientOptions& options) {
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
  return adopt(fd, options);
}

std::shared_ptr<Client> Client::adopt(int socket, const ClientOptions& options) {
  return std::shared_ptr<Client>(new Client(socket, options));
}

Client::Client(int socket, const ClientOptions& options) : pid_(getpid()), socket_(socket) {
  const int size = 4 << 20;
  setsockopt(socket_, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
  try {
    if (options.weight < 1 || options.weight > kMaxWeight) {
      throw Failure(POLYMUX_INVALID_REQUEST,
                    "weight " + std::to_string(options.weight) + " is outside 1 to 10000 per cent; 100 is normal");
    }
    Message reply = request("hello", {{"version", std::to_string(kProtocolVersion)},
                                      {"layout", std::to_string(kLayoutVersion)},
                                      {"name", options.name},
                                      {"segment_nbytes", std::to_string(options.segment_nbytes)},
                                      {"weight", std::to_string(options.weight)}});
    session_ = reply.text("session");
    devices_ = split_list(reply.text("devices"));
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
  nbytes_ = reply.number("segment_nbytes");
  struct stat info{};
  unsigned char* memory = nullptr;
  if (nbytes_ >= kMinSegmentBytes && fstat(segment_fd_, &info) == 0 && static_cast<uint64_t>(info.st_size) >= nbytes_) {
    memory = map_shared(nbytes_, segment_fd_);
  }
  if (memory == nullptr) {
    ::close(segment_fd_);
    throw Failure(POLYMUX_SYSTEM_ERROR, "cannot map the segment of " + std::to_string(nbytes_) + " bytes");
  }
  base_ = memory;
  const SegmentHeader* h = header();
  if (h->magic != kMagic || h->layout_version != kLayoutVersion || h->data_offset != kDataOffset) {
    const uint32_t version = h->layout_version;
    munmap(base_, nbytes_);
    ::close(segment_fd_);
    throw Failure(POLYMUX_PROTOCOL_MISMATCH, "the server's segment has layout version " + std::to_string(version) +
                                                 ", this library " + std::to_string(kLayoutVersion) +
                                                 "; install the same Polymux on both");
  }
  allocator_ = std::make_unique<Allocator>(kDataOffset, nbytes_ - kDataOffset);
  huge_pages_ = std::make_unique<HugePages>(base_, nbytes_);
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

// Several threads may have a request under way: one of those that wait receives for all.
Message Client::request(const std::string& verb, Fields fields, const std::vector<int>& fds) {
  check_open();
  BlockingSection blocking;
  std::unique_lock lock(request_mutex_);
  const std::string id = std::to_string(++request_id_);
  fields["id"] = id;
  Awaited mine;
  awaited_[id] = &mine;
  try {
    send_message(socket_, encode_message(verb, fields), fds);
  } catch (const Failure& failure) {
    awaited_.erase(id);
    if (failure.status == POLYMUX_SERVER_GONE) gone_.store(true);
    throw;
  } catch (...) {
    awaited_.erase(id);
    throw;
  }
  while (!mine.arrived) {
    if (receiving_) {
      answered_.wait(lock);
    } else {
      receive_answer(lock);
    }
  }
  if (mine.failure) std::rethrow_exception(mine.failure);
  if (mine.reply.verb == "ok") return std::move(mine.reply);
  close_all(mine.reply.fds);
  throw Failure(status_of(mine.reply.text("code")), mine.reply.text("message"));
}

// Receives one message, with the lock open meanwhile, and gives it to whoever awaits it; a failure is everybody's.
void Client::receive_answer(std::unique_lock<std::mutex>& lock) {
  receiving_ = true;
  lock.unlock();
  Message reply;
  std::exception_ptr failure;
  try {
    reply = receive_message(socket_);
  } catch (const Failure& caught) {
    if (caught.status == POLYMUX_SERVER_GONE) gone_.store(true);
    failure = std::current_exception();
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  receiving_ = false;
  if (failure) {
    for (auto& [id, awaited] : awaited_) {
      awaited->failure = failure;
      awaited->arrived = true;
    }
    awaited_.clear();
  } else if (const auto found = awaited_.find(reply.text("id")); found != awaited_.end()) {
    found->second->reply = std::move(reply);
    found->second->arrived = true;
    awaited_.erase(found);
  } else {
    close_all(reply.fds);
  }
  answered_.notify_all();
}

uint32_t Client::kernel_id(const std::string& name) {
  {
    std::lock_guard lock(memory_mutex_);
    if (const auto found = kernels_.find(name); found != kernels_.end()) return found->second;
  }
  const auto id = static_cast<uint32_t>(request("kernel", {{"name", name}}).number("kernel_id"));
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
  if (progress.sleeps_due.load(std::memory_order_relaxed) == 0 && look_on(progress, sequence, start, timeout_ns)) {
    return POLYMUX_OK;
  }
  const polymux_status status = sleep_until(progress, sequence, start, timeout_ns);
  const uint32_t due = progress.sleeps_due.load(std::memory_order_relaxed);
  if (due != 0 && now_ns() - start < kShortWaitNs) progress.sleeps_due.store(due - 1, std::memory_order_relaxed);
  return status;
}

// Tasks of a queue tend to take alike, and while they are short, to be woken costs as much as they do. So stay awake,
// but leave the processor to whoever else wants it: if somebody does, and if tasks are long, the next waits sleep at
// once.
bool Client::look_on(Progress& progress, uint64_t sequence, int64_t start_ns, int64_t timeout_ns) {
  const int64_t end = start_ns + (timeout_ns < 0 ? kShortWaitNs : std::min(kShortWaitNs, timeout_ns));
  for (int64_t before = now_ns(); before < end;) {
    sched_yield();
    if (progress.done(sequence)) return true;
    const int64_t after = now_ns();
    if (after - before > kCrowdedNs) {
      progress.sleeps_due.store(kSleepsWhenCrowded, std::memory_order_relaxed);
      return false;
    }
    before = after;
  }
  progress.sleeps_due.store(1, std::memory_order_relaxed);
  return false;
}

polymux_status Client::sleep_until(Progress& progress, uint64_t sequence, int64_t start_ns, int64_t timeout_ns) {
  for (;;) {
    const uint32_t value = completion_value();
    if (progress.done(sequence)) return POLYMUX_OK;
    progress.want(sequence);
    if (progress.done(sequence)) return POLYMUX_OK;
    const int64_t left = time_left(start_ns, timeout_ns);
    if (left == 0) return POLYMUX_TIMEOUT;
    const bool slept_out = !completion_wait(value, left < 0 ? kAliveCheckNs : std::min(left, kAliveCheckNs));
    if (slept_out && server_gone()) return progress.done(sequence) ? POLYMUX_OK : POLYMUX_SERVER_GONE;
  }
}

}  // namespace polymux
