// A buffer of the application: an array in the segment, and which tasks use it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client.hpp"
#include "layout.hpp"
#include "progress.hpp"

namespace polymux {

class Buffer : public std::enable_shared_from_this<Buffer> {
 public:
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // Waits for the tasks that use it. False when the time is over.
  bool wait(int64_t timeout_ns) const;
  bool idle() const;
  // Waits and brings the valid copy into the segment.
  bool bring_home(int64_t timeout_ns);
  bool away() const;
  // Its memory is free for others when the tasks that use it are done and its last view is gone.
  void close();
  std::string export_buffer();
  void revoke();

  unsigned char* data() const { return client_->base() + offset_; }
  // The result's shape when a task has reported one.
  std::vector<int64_t> shape() const;
  std::vector<int64_t> declared_shape() const { return {shape_.begin(), shape_.begin() + ndim_}; }
  int32_t dtype() const { return dtype_; }
  uint64_t nbytes() const { return nbytes_; }
  uint32_t slot() const { return slot_; }
  uint16_t generation() const { return generation_; }
  bool closed() const { return closed_; }
  const std::shared_ptr<Client>& client() const { return client_; }
  void check_open() const;
  void add_view();
  void drop_view();
  int views() const { return views_; }

 private:
  friend class Client;
  friend class Queue;
  Buffer(std::shared_ptr<Client> client, int32_t dtype, const std::vector<int64_t>& shape, uint64_t nbytes);
  void publish();
  void used_by_another(const std::shared_ptr<Progress>& progress, uint64_t sequence);

  std::shared_ptr<Client> client_;
  uint32_t slot_ = 0;
  uint16_t generation_ = 0;
  bool foreign_ = false;
  bool closed_ = true;  // until it has memory
  bool freed_ = true;
  int32_t dtype_;
  int32_t ndim_;
  int views_ = 0;
  std::array<int64_t, POLYMUX_MAX_DIMENSIONS> shape_{};
  uint64_t nbytes_;
  uint64_t offset_ = 0;
  uint64_t block_nbytes_ = 0;
  std::shared_ptr<Progress> last_progress_;
  uint64_t last_sequence_ = 0;
  std::vector<Client::Use> other_uses_;
  std::string token_;
};

}  // namespace polymux
