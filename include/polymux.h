/* Polymux: the C interface of an application and the ABI of native kernels.
 *
 * An application connects, opens task queues, allocates buffers in memory that it shares with the server,
 * submits tasks and waits for them. Every function that can fail returns a polymux_status; the text of the last
 * failure of the calling thread is polymux_last_error(). One queue may be used by one thread at a time;
 * different queues of one client may be used by different threads.
 */
#ifndef POLYMUX_H
#define POLYMUX_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define POLYMUX_API __attribute__((visibility("default")))
#else
#define POLYMUX_API
#endif

#define POLYMUX_MAX_BUFFERS 16    /* buffer references of one task */
#define POLYMUX_MAX_ARGUMENTS 256 /* bytes of scalar arguments of one task */
#define POLYMUX_MAX_DIMENSIONS 8
#define POLYMUX_TOKEN_NBYTES 33 /* a grant's token with its final zero */

typedef enum polymux_status {
  POLYMUX_OK = 0,
  /* of a task */
  POLYMUX_INVALID_TASK = 1,
  POLYMUX_UNKNOWN_KERNEL = 2,
  POLYMUX_BAD_ARGUMENT = 3,
  POLYMUX_BAD_BUFFER = 4,
  POLYMUX_NO_DEVICE = 5,
  POLYMUX_OUT_OF_MEMORY = 6,
  POLYMUX_KERNEL_FAILED = 7,
  POLYMUX_KERNEL_CRASHED = 8,
  POLYMUX_CANCELLED = 9,
  POLYMUX_DEVICE_FAILED = 10,
  POLYMUX_OUTPUT_TOO_SMALL = 11,
  POLYMUX_REJECTED = 12,
  /* of a call */
  POLYMUX_SERVER_GONE = 100,
  POLYMUX_TIMEOUT = 101,
  POLYMUX_QUEUE_FULL = 102,
  POLYMUX_SEGMENT_FULL = 103,
  POLYMUX_CLOSED = 104,
  POLYMUX_PROTOCOL_MISMATCH = 105,
  POLYMUX_INVALID_REQUEST = 106,
  POLYMUX_NO_SERVER = 107,
  POLYMUX_PERMISSION_DENIED = 108,
  POLYMUX_SYSTEM_ERROR = 109
} polymux_status;

typedef enum polymux_dtype {
  POLYMUX_BOOL = 0,
  POLYMUX_I8 = 1,
  POLYMUX_I16 = 2,
  POLYMUX_I32 = 3,
  POLYMUX_I64 = 4,
  POLYMUX_U8 = 5,
  POLYMUX_U16 = 6,
  POLYMUX_U32 = 7,
  POLYMUX_U64 = 8,
  POLYMUX_F16 = 9,
  POLYMUX_F32 = 10,
  POLYMUX_F64 = 11,
  POLYMUX_BF16 = 12,
  POLYMUX_C64 = 13,
  POLYMUX_C128 = 14
} polymux_dtype;

enum { POLYMUX_READ = 1, POLYMUX_WRITE = 2 };
enum { POLYMUX_SHAREABLE = 1 }; /* polymux_buffer_alloc: on pages of its own, so that it can be exported */
enum { POLYMUX_WAIT = 0, POLYMUX_RAISE = 1 }; /* what a submit does when the queue is full */
#define POLYMUX_FOREVER INT64_C(-1)

typedef struct polymux_client polymux_client;
typedef struct polymux_queue polymux_queue;
typedef struct polymux_buffer polymux_buffer;

/* ---- connection ---- */

/* Text of the calling thread's last failure; valid until its next failing call. */
POLYMUX_API const char* polymux_last_error(void);
/* The status' name, e.g. "KERNEL_FAILED". */
POLYMUX_API const char* polymux_status_name(polymux_status status);

typedef struct polymux_connect_options {
  const char* socket_path; /* NULL: $POLYMUX_SOCKET, else the default path of this user */
  const char* name;        /* shown to the operator; NULL: the process' number */
  uint64_t segment_nbytes; /* of shared memory, which is taken as it is touched; 0: the server's default */
  uint32_t weight;         /* share against other applications of the same priority, 1 to 10000; 0: 100 */
} polymux_connect_options;

/* Connect to the server. options NULL: all defaults. */
POLYMUX_API polymux_status polymux_connect(const polymux_connect_options* options, polymux_client** client);
/* Ends the connection; queues and buffers of the client are invalid afterwards. NULL is allowed. */
POLYMUX_API void polymux_close(polymux_client* client);

/* ---- queues ---- */

typedef struct polymux_queue_options {
  const char* name;       /* NULL: a number */
  const char* device;     /* pin to this device or stream, e.g. "cpu:0", "cpu:0/1"; NULL: the server decides */
  int32_t priority;       /* higher runs first */
  uint32_t capacity;      /* tasks in flight, a power of two, 16 to 65536; 0: 1024 */
  int32_t on_full;        /* POLYMUX_WAIT or POLYMUX_RAISE */
  uint64_t memory_nbytes; /* how much data its tasks use, about: helps to choose a device; 0: not known */
} polymux_queue_options;

POLYMUX_API polymux_status polymux_queue_open(polymux_client* client, const polymux_queue_options* options,
                                              polymux_queue** queue);
/* Waits for nothing: tasks that have not started are dropped. */
POLYMUX_API void polymux_queue_close(polymux_queue* queue);

/* ---- buffers ---- */

POLYMUX_API polymux_status polymux_buffer_alloc(polymux_client* client, polymux_dtype dtype, int32_t ndim,
                                                const int64_t* shape, uint32_t flags, polymux_buffer** buffer);
/* Freed as soon as the tasks that use it are done. */
POLYMUX_API void polymux_buffer_free(polymux_buffer* buffer);
/* Waits for the tasks that use the buffer, brings its valid copy home and returns the address in shared memory. */
POLYMUX_API polymux_status polymux_buffer_map(polymux_buffer* buffer, int64_t timeout_ns, void** data);
POLYMUX_API uint64_t polymux_buffer_nbytes(const polymux_buffer* buffer);
/* Grant the buffer to whoever knows the token. The buffer must be on pages of its own: 64 KiB or more, or allocated
 * with POLYMUX_SHAREABLE. */
POLYMUX_API polymux_status polymux_buffer_export(polymux_buffer* buffer, char token[POLYMUX_TOKEN_NBYTES]);
POLYMUX_API polymux_status polymux_buffer_import(polymux_client* client, const char* token, polymux_buffer** buffer);
/* Nobody can import it any more; who has done so keeps it. */
POLYMUX_API polymux_status polymux_buffer_revoke(polymux_buffer* buffer);

/* ---- tasks ---- */

typedef struct polymux_hints {
  int64_t deadline_ns; /* CLOCK_MONOTONIC; 0: none */
  int32_t priority;    /* added to the queue's; -128 to 127 */
  int32_t share;       /* per cent of the device wished for; 0: whatever the stream has */
  int32_t device;      /* number of the device wished for plus one; 0: any */
} polymux_hints;

typedef struct polymux_task {
  polymux_queue* queue;
  uint64_t sequence; /* 1, 2, 3 ... within the queue */
} polymux_task;

/* The kernel's number on this server; cached by name. */
POLYMUX_API polymux_status polymux_kernel_find(polymux_client* client, const char* name, uint32_t* kernel);
/* Issue a task. buffers: inputs first, then outputs, `access` of each in accesses (POLYMUX_READ, POLYMUX_WRITE or
 * both). arguments: the kernel's scalars in order, naturally aligned. hints and task may be NULL. */
POLYMUX_API polymux_status polymux_submit(polymux_queue* queue, uint32_t kernel, uint32_t n_buffers,
                                          polymux_buffer* const* buffers, const uint8_t* accesses,
                                          const void* arguments, uint32_t arguments_nbytes, const polymux_hints* hints,
                                          polymux_task* task);
/* The task's own status (see polymux_last_error for its text), or POLYMUX_TIMEOUT, or POLYMUX_SERVER_GONE. Waiting
 * twice is fine. */
POLYMUX_API polymux_status polymux_wait(polymux_task task, int64_t timeout_ns);
/* Waits for all tasks of the queue; the status of the first one that failed since the last call. */
POLYMUX_API polymux_status polymux_synchronize(polymux_queue* queue, int64_t timeout_ns);

/* ---- native kernels ---- */

#define POLYMUX_KERNEL_ABI 1

typedef struct polymux_kernel_buffer {
  void* data;
  uint64_t nbytes;
  int32_t dtype;
  int32_t access;
  int32_t ndim;
  int32_t reserved;
  int64_t shape[POLYMUX_MAX_DIMENSIONS];
} polymux_kernel_buffer;

typedef struct polymux_kernel_call {
  uint32_t abi;
  uint32_t n_buffers; /* inputs first, then outputs */
  const polymux_kernel_buffer* buffers;
  const void* args; /* scalars in order, naturally aligned */
  uint32_t args_nbytes;
  uint32_t threads; /* cores of the share that the kernel may use */
  char* message;    /* written by a kernel that fails */
  uint32_t message_nbytes;
} polymux_kernel_call;

/* 0: done; POLYMUX_BAD_ARGUMENT: the buffers or scalars do not fit, nothing was written; anything else: failed. With a
 * message unless 0. Must not keep the pointers. */
typedef int (*polymux_kernel_fn)(polymux_kernel_call*);

/* A kernel library exports this and returns POLYMUX_KERNEL_ABI; the server refuses it otherwise. */
POLYMUX_API uint32_t polymux_kernel_library_abi(void);

#ifdef __cplusplus
}
#endif
#endif
