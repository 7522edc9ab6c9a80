// The C interface: handles around the classes of cpp/core, exceptions turned into statuses.
#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include "core/queue.hpp"
#include "polymux.h"

using polymux::Failure;

struct polymux_queue {
  std::shared_ptr<polymux::Queue> queue;
  polymux_client* owner;
};

struct polymux_buffer {
  std::shared_ptr<polymux::Buffer> buffer;
  polymux_client* owner;
};

struct polymux_client {
  std::shared_ptr<polymux::Client> client;
  std::mutex mutex;
  std::unordered_set<polymux_queue*> queues;
  std::unordered_set<polymux_buffer*> buffers;
};

namespace {

thread_local std::string last_error;

polymux_status fail(polymux_status status, std::string message) {
  last_error = std::move(message);
  return status;
}

template <class Function>
polymux_status guarded(Function&& function) {
  try {
    return function();
  } catch (const Failure& failure) {
    return fail(failure.status, failure.what());
  } catch (const std::exception& e) {
    return fail(POLYMUX_SYSTEM_ERROR, e.what());
  }
}

polymux_status null_argument(const char* name) { return fail(POLYMUX_INVALID_REQUEST, std::string(name) + " is NULL"); }

template <class Handle>
Handle* keep(polymux_client* owner, std::unordered_set<Handle*>& set, Handle* handle) {
  std::lock_guard lock(owner->mutex);
  set.insert(handle);
  return handle;
}

template <class Handle>
void drop(std::unordered_set<Handle*> polymux_client::* set, Handle* handle) {
  if (handle == nullptr) return;
  {
    std::lock_guard lock(handle->owner->mutex);
    (handle->owner->*set).erase(handle);
  }
  delete handle;
}

polymux_status outcome(polymux::Queue& queue, uint64_t sequence) {
  const polymux::TaskError* error = queue.error(sequence);
  return error == nullptr ? POLYMUX_OK : fail(error->status, error->text);
}

}  // namespace

extern "C" {

const char* polymux_last_error(void) { return last_error.c_str(); }

const char* polymux_status_name(polymux_status status) {
  switch (status) {
#define NAME(x)     \
  case POLYMUX_##x: \
    return #x;
    NAME(OK)
    NAME(INVALID_TASK)
    NAME(UNKNOWN_KERNEL)
    NAME(BAD_ARGUMENT)
    NAME(BAD_BUFFER)
    NAME(NO_DEVICE)
    NAME(OUT_OF_MEMORY)
    NAME(KERNEL_FAILED)
    NAME(KERNEL_CRASHED)
    NAME(CANCELLED)
    NAME(DEVICE_FAILED)
    NAME(OUTPUT_TOO_SMALL)
    NAME(REJECTED)
    NAME(SERVER_GONE)
    NAME(TIMEOUT)
    NAME(QUEUE_FULL)
    NAME(SEGMENT_FULL)
    NAME(CLOSED)
    NAME(PROTOCOL_MISMATCH)
    NAME(INVALID_REQUEST)
    NAME(NO_SERVER)
    NAME(PERMISSION_DENIED)
    NAME(SYSTEM_ERROR)
#undef NAME
  }
  return "UNKNOWN";
}

polymux_status polymux_connect(const polymux_connect_options* options, polymux_client** client) {
  if (client == nullptr) return null_argument("client");
  *client = nullptr;
  return guarded([&] {
    std::string path;
    polymux::ClientOptions o;
    if (options != nullptr) {
      if (options->socket_path != nullptr) path = options->socket_path;
      if (options->name != nullptr) o.name = options->name;
      o.segment_nbytes = options->segment_nbytes;
      if (options->weight != 0) o.weight = options->weight;
    }
    auto handle = std::make_unique<polymux_client>();
    handle->client = polymux::Client::connect(path, o);
    *client = handle.release();
    return POLYMUX_OK;
  });
}

void polymux_close(polymux_client* client) {
  if (client == nullptr) return;
  client->client->close();
  for (polymux_queue* queue : client->queues) delete queue;
  for (polymux_buffer* buffer : client->buffers) delete buffer;
  delete client;
}

polymux_status polymux_queue_open(polymux_client* client, const polymux_queue_options* options, polymux_queue** queue) {
  if (client == nullptr || queue == nullptr) return null_argument(client == nullptr ? "client" : "queue");
  *queue = nullptr;
  return guarded([&] {
    polymux::QueueOptions o;
    if (options != nullptr) {
      if (options->name != nullptr) o.name = options->name;
      if (options->device != nullptr) o.device = options->device;
      o.priority = options->priority;
      o.memory_nbytes = options->memory_nbytes;
      if (options->capacity != 0) o.capacity = options->capacity;
      o.raise_when_full = options->on_full == POLYMUX_RAISE;
    }
    *queue = keep(client, client->queues, new polymux_queue{client->client->open_queue(o), client});
    return POLYMUX_OK;
  });
}

void polymux_queue_close(polymux_queue* queue) {
  if (queue != nullptr) queue->queue->close();
  drop(&polymux_client::queues, queue);
}

polymux_status polymux_buffer_alloc(polymux_client* client, polymux_dtype dtype, int32_t ndim, const int64_t* shape,
                                    uint32_t flags, polymux_buffer** buffer) {
  if (client == nullptr || buffer == nullptr) return null_argument(client == nullptr ? "client" : "buffer");
  *buffer = nullptr;
  if (ndim != 0 && shape == nullptr) return null_argument("shape");
  if (ndim < 0 || ndim > POLYMUX_MAX_DIMENSIONS) {
    return fail(POLYMUX_INVALID_REQUEST, "ndim " + std::to_string(ndim) + " is not between 0 and 8");
  }
  return guarded([&] {
    auto made = client->client->allocate(dtype, {shape, shape + ndim}, (flags & POLYMUX_SHAREABLE) != 0);
    *buffer = keep(client, client->buffers, new polymux_buffer{std::move(made), client});
    return POLYMUX_OK;
  });
}

void polymux_buffer_free(polymux_buffer* buffer) { drop(&polymux_client::buffers, buffer); }

polymux_status polymux_buffer_map(polymux_buffer* buffer, int64_t timeout_ns, void** data) {
  if (buffer == nullptr || data == nullptr) return null_argument(buffer == nullptr ? "buffer" : "data");
  return guarded([&] {
    if (!buffer->buffer->bring_home(timeout_ns)) return fail(POLYMUX_TIMEOUT, "tasks still use the buffer");
    *data = buffer->buffer->data();
    return POLYMUX_OK;
  });
}

uint64_t polymux_buffer_nbytes(const polymux_buffer* buffer) {
  return buffer == nullptr ? 0 : buffer->buffer->nbytes();
}

polymux_status polymux_buffer_export(polymux_buffer* buffer, char token[POLYMUX_TOKEN_NBYTES]) {
  if (buffer == nullptr || token == nullptr) return null_argument(buffer == nullptr ? "buffer" : "token");
  return guarded([&] {
    const std::string made = buffer->buffer->export_buffer();
    if (made.size() >= POLYMUX_TOKEN_NBYTES)
      return fail(POLYMUX_PROTOCOL_MISMATCH, "a token of more than 32 characters");
    std::copy(made.c_str(), made.c_str() + made.size() + 1, token);
    return POLYMUX_OK;
  });
}

polymux_status polymux_buffer_import(polymux_client* client, const char* token, polymux_buffer** buffer) {
  if (client == nullptr || token == nullptr || buffer == nullptr) return null_argument("client, token or buffer");
  *buffer = nullptr;
  return guarded([&] {
    *buffer = keep(client, client->buffers, new polymux_buffer{client->client->import_buffer(token), client});
    return POLYMUX_OK;
  });
}

polymux_status polymux_buffer_revoke(polymux_buffer* buffer) {
  if (buffer == nullptr) return null_argument("buffer");
  return guarded([&] {
    buffer->buffer->revoke();
    return POLYMUX_OK;
  });
}

polymux_status polymux_kernel_find(polymux_client* client, const char* name, uint32_t* kernel) {
  if (client == nullptr || name == nullptr || kernel == nullptr) return null_argument("client, name or kernel");
  return guarded([&] {
    *kernel = client->client->kernel_id(name);
    return POLYMUX_OK;
  });
}

polymux_status polymux_submit(polymux_queue* queue, uint32_t kernel, uint32_t n_buffers, polymux_buffer* const* buffers,
                              const uint8_t* accesses, const void* arguments, uint32_t arguments_nbytes,
                              const polymux_hints* hints, polymux_task* task) {
  if (queue == nullptr) return null_argument("queue");
  if (n_buffers > POLYMUX_MAX_BUFFERS || arguments_nbytes > POLYMUX_MAX_ARGUMENTS) {
    return fail(POLYMUX_INVALID_REQUEST, "a task has at most 16 buffers and 256 bytes of arguments, not " +
                                             std::to_string(n_buffers) + " and " + std::to_string(arguments_nbytes));
  }
  if ((n_buffers != 0 && (buffers == nullptr || accesses == nullptr)) ||
      (arguments_nbytes != 0 && arguments == nullptr)) {
    return null_argument("buffers, accesses or arguments");
  }
  polymux::Buffer* plain[POLYMUX_MAX_BUFFERS];
  for (uint32_t i = 0; i < n_buffers; ++i) {
    if (buffers[i] == nullptr) return null_argument("a buffer");
    plain[i] = buffers[i]->buffer.get();
    if (plain[i]->client() != queue->queue->client()) {
      return fail(POLYMUX_BAD_BUFFER, "buffer " + std::to_string(i) + " belongs to another client");
    }
  }
  polymux::Hints h;
  if (hints != nullptr) {
    if (hints->priority < -128 || hints->priority > 127 || hints->share < 0 || hints->share > 100 ||
        hints->device < 0 || hints->device > 0xFFFF) {
      return fail(POLYMUX_INVALID_REQUEST, "a hint is out of range: priority -128 to 127, share 0 to 100, device >= 0");
    }
    h = {hints->deadline_ns, hints->priority, static_cast<uint32_t>(hints->share),
         static_cast<uint32_t>(hints->device)};
  }
  return guarded([&] {
    const uint64_t sequence = queue->queue->submit(kernel, n_buffers, plain, accesses, arguments, arguments_nbytes, h);
    if (task != nullptr) *task = {queue, sequence};
    return POLYMUX_OK;
  });
}

polymux_status polymux_wait(polymux_task task, int64_t timeout_ns) {
  if (task.queue == nullptr) return null_argument("task.queue");
  return guarded([&] {
    polymux::Queue& queue = *task.queue->queue;
    if (task.sequence == 0 || task.sequence > queue.tail()) {
      return fail(POLYMUX_INVALID_REQUEST, "the queue has no task " + std::to_string(task.sequence));
    }
    const polymux_status status = queue.wait_done(task.sequence, timeout_ns);
    if (status == POLYMUX_TIMEOUT) return fail(status, "the task is not done yet");
    if (status != POLYMUX_OK) return fail(status, "the server is gone");
    return outcome(queue, task.sequence);
  });
}

polymux_status polymux_synchronize(polymux_queue* queue, int64_t timeout_ns) {
  if (queue == nullptr) return null_argument("queue");
  return guarded([&] {
    polymux::Queue& q = *queue->queue;
    const polymux_status status = q.wait_done(q.tail(), timeout_ns);
    if (status == POLYMUX_TIMEOUT) return fail(status, "tasks are not done yet");
    if (status != POLYMUX_OK) return fail(status, "the server is gone");
    const auto [sequence, error] = q.first_unobserved();
    if (error == nullptr) return POLYMUX_OK;
    const polymux_status first = error->status;
    return fail(first, "task " + std::to_string(sequence) + ": " + error->text);
  });
}

}  // extern "C"
