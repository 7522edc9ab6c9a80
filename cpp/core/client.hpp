// What an application links: a connection, its memory, task queues and buffers. The C interface (c_api.cpp) and the
// Python module (cpp/python) are thin layers over these classes.
//
// Threads: allocation and requests are safe from any thread; a queue, and the buffers given to it, belong to one thread
// at a time (in Python the interpreter's lock sees to that). Waiting is safe from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "allocator.hpp"
#include "huge_pages.hpp"
#include "layout.hpp"
#include "message.hpp"
#include "progress.hpp"

namespace polymux {

class Buffer;
class Queue;

struct ClientOptions {
  std::string name;
  uint64_t segment_nbytes = 0;  // 0: the server's default
  uint32_t weight = kNormalWeight;
};

struct QueueOptions {
  std::string name;
  std::string device;
  int32_t priority = 0;
  uint64_t memory_nbytes = 0;  // how much data its tasks use, about; 0: not known
  uint32_t capacity = 1024;
  bool raise_when_full = false;
};

class Client : public std::enable_shared_from_this<Client> {
 public:
  static std::shared_ptr<Client> connect(const std::string& path, const ClientOptions& options);
  // Over a connected socket, which it owns from then on.
  static std::shared_ptr<Client> adopt(int socket, const ClientOptions& options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Sends a request and waits for its reply. Throws Failure with the server's text.
  Message request(const std::string& verb, Fields fields, const std::vector<int>& fds = {});
  bool server_gone() const;
  bool closed() const { return closed_.load(std::memory_order_acquire); }
  // Ends the connection. Memory stays mapped as long as a buffer or a view of one lives.
  void close();
  void check_open() const;

  std::shared_ptr<Queue> open_queue(const QueueOptions& options);
  std::shared_ptr<Buffer> allocate(int32_t dtype, const std::vector<int64_t>& shape, bool shareable);
  std::shared_ptr<Buffer> import_buffer(const std::string& token);

  uint32_t kernel_id(const std::string& name);
  // Number for Hints::device; throws for a name that the server does not have.
  uint32_t device_hint(const std::string& device) const;

  // For a thread that waits for tasks of several queues: read the value, want them all, look, sleep on the value.
  uint32_t completion_value() const { return header()->completion.load(std::memory_order_seq_cst); }
  bool completion_wait(uint32_t value, int64_t timeout_ns);

  // What a job of this session looks at.
  JobGate* gate(uint32_t index) const;
  // Sleeps while the gate's word has this value; false when the time is over. Can return early.
  bool gate_wait(uint32_t index, uint32_t word, int64_t timeout_ns) const;
  // Has every gate of the session say that the server is gone.
  void shut_gates();
  int fileno() const { return socket_; }

  // Brings home every idle buffer that has a live view and is away. False when the time is over.
  bool bring_views_home(int64_t timeout_ns);
  bool anything_away() const { return header()->away.load(std::memory_order_acquire) != 0; }

  SegmentHeader* header() const { return reinterpret_cast<SegmentHeader*>(base_); }
  unsigned char* base() const { return base_; }
  BufferEntry* entry(uint32_t slot) const { return reinterpret_cast<BufferEntry*>(base_ + kTableOffset) + slot; }
  const std::string& session() const { return session_; }
  const std::vector<std::string>& devices() const { return devices_; }
  uint64_t segment_nbytes() const { return nbytes_; }
  Allocator::Stats memory() const;

  std::shared_ptr<void> attachment;  // a language binding's own

 private:
  friend class Buffer;
  friend class Queue;
  using Use = std::pair<std::shared_ptr<Progress>, uint64_t>;
  struct Leaving {  // a freed buffer that tasks still use
    uint32_t slot;
    uint64_t offset;
    uint64_t block_nbytes;
    bool foreign;
    std::vector<Use> uses;
  };

  Client(int socket, const ClientOptions& options);
  void map_segment(const Message& reply);
  bool forked() const;
  uint64_t allocate_block(uint64_t nbytes, uint64_t alignment);
  uint32_t take_slot();
  void free_buffer(Buffer* buffer);
  void collect();
  void give_back(std::vector<Leaving> leavings);
  void release(uint32_t slot, uint32_t generation);
  bool unshare(const Leaving& leaving);
  void free_region(uint64_t offset);
  std::shared_ptr<Queue> queue_for(const Progress* progress);
  bool look_on(Progress& progress, uint64_t sequence, int64_t start_ns, int64_t timeout_ns);
  polymux_status sleep_until(Progress& progress, uint64_t sequence, int64_t start_ns, int64_t timeout_ns);
  polymux_status wait_progress(Progress& progress, uint64_t sequence, int64_t timeout_ns, int64_t spin_ns);

  const int pid_;  // a fork of the application must connect for itself
  int socket_ = -1;
  int segment_fd_ = -1;
  unsigned char* base_ = nullptr;
  uint64_t nbytes_ = 0;
  std::string session_;
  std::vector<std::string> devices_;
  std::atomic<bool> closed_{false};
  std::atomic<uint64_t> rung_{0};  // the value of `sleepers` that the doorbell was last rung for
  mutable std::atomic<bool> gone_{false};

  struct Awaited {
    Message reply;
    std::exception_ptr failure;
    bool arrived = false;
  };
  void receive_answer(std::unique_lock<std::mutex>& lock);

  std::mutex request_mutex_;  // of what follows, and of sending
  uint64_t request_id_ = 0;
  std::unordered_map<std::string, Awaited*> awaited_;  // by the request's id
  bool receiving_ = false;
  std::condition_variable answered_;

  mutable std::mutex memory_mutex_;
  std::unique_ptr<Allocator> allocator_;
  std::unique_ptr<HugePages> huge_pages_;
  std::vector<uint32_t> free_slots_;
  uint32_t next_slot_ = 0;
  std::vector<Leaving> leaving_;
  std::vector<Buffer*> viewed_;
  std::vector<std::weak_ptr<Queue>> queues_;
  std::unordered_map<std::string, uint32_t> kernels_;
};

}  // namespace polymux
