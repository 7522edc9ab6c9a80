/* The first steps in C: connect, allocate buffers in shared memory, submit a task, wait for it, look at the result, and
 * hand a buffer to another application.
 *
 *     polymux up &          the server
 *     make && ./saxpy       or ./saxpy PATH for a server on another socket
 */
#include <inttypes.h>
#include <polymux.h>
#include <stdio.h>
#include <stdlib.h>

/* Every call that can fail returns a status; its text is in polymux_last_error(). */
static void check(polymux_status status, const char* what) {
  if (status == POLYMUX_OK) return;
  fprintf(stderr, "saxpy: %s: %s: %s\n", what, polymux_status_name(status), polymux_last_error());
  exit(1);
}

/* Another application: knows nothing but the token. Its mapping shows the same memory, nothing is copied. */
static void read_elsewhere(const char* socket_path, const char* token, const float* expected, int64_t n) {
  polymux_client* client;
  polymux_buffer* buffer;
  void* data;
  check(polymux_connect(&(polymux_connect_options){.socket_path = socket_path, .name = "saxpy-reader"}, &client),
        "connect a second time");
  check(polymux_buffer_import(client, token, &buffer), "import");
  check(polymux_buffer_map(buffer, POLYMUX_FOREVER, &data), "map the imported buffer");
  for (int64_t i = 0; i < n; ++i) {
    if (((const float*)data)[i] == expected[i]) continue;
    fprintf(stderr, "saxpy: the imported element %" PRId64 " is %g instead of %g\n", i, ((const float*)data)[i],
            expected[i]);
    exit(1);
  }
  polymux_buffer_free(buffer);
  polymux_close(client);
}

int main(int argc, char** argv) {
  const char* socket_path = argc > 1 ? argv[1] : NULL; /* NULL: the default one */
  const int64_t n = 1 << 20;
  polymux_client* client;
  polymux_queue* queue;
  polymux_buffer *x, *y;
  void *x_data, *y_data;

  check(polymux_connect(&(polymux_connect_options){.socket_path = socket_path, .name = "saxpy"}, &client), "connect");
  check(polymux_queue_open(client, NULL, &queue), "open a queue");
  check(polymux_buffer_alloc(client, POLYMUX_F32, 1, &n, 0, &x), "allocate x");
  check(polymux_buffer_alloc(client, POLYMUX_F32, 1, &n, 0, &y), "allocate y");

  /* The application writes where the device reads. */
  check(polymux_buffer_map(x, POLYMUX_FOREVER, &x_data), "map x");
  check(polymux_buffer_map(y, POLYMUX_FOREVER, &y_data), "map y");
  for (int64_t i = 0; i < n; ++i) {
    ((float*)x_data)[i] = (float)i;
    ((float*)y_data)[i] = 1.0f;
  }

  /* y = a * x + y: inputs x and y, output y; the scalar a is a double. */
  uint32_t saxpy;
  check(polymux_kernel_find(client, "saxpy", &saxpy), "find the kernel");
  polymux_buffer* const buffers[] = {x, y, y};
  const uint8_t accesses[] = {POLYMUX_READ, POLYMUX_READ, POLYMUX_WRITE};
  const double a = 2.0;
  polymux_task task;
  check(polymux_submit(queue, saxpy, 3, buffers, accesses, &a, sizeof a, NULL, &task), "submit");
  check(polymux_wait(task, POLYMUX_FOREVER), "saxpy");

  check(polymux_buffer_map(y, POLYMUX_FOREVER, &y_data), "map the result");
  for (int64_t i = 0; i < n; ++i) {
    const float expected = 2.0f * (float)i + 1.0f;
    if (((const float*)y_data)[i] == expected) continue;
    fprintf(stderr, "saxpy: element %" PRId64 " is %g instead of %g\n", i, ((const float*)y_data)[i], expected);
    return 1;
  }
  printf("saxpy: %" PRId64 " elements are right\n", n);

  /* A grant: whoever knows the token may import the buffer, until it is revoked. */
  char token[POLYMUX_TOKEN_NBYTES];
  check(polymux_buffer_export(y, token), "export");
  check(polymux_buffer_map(y, POLYMUX_FOREVER, &y_data), "map the exported buffer");
  read_elsewhere(socket_path, token, (const float*)y_data, n);
  check(polymux_buffer_revoke(y), "revoke");
  printf("saxpy: another application has read the result\n");

  polymux_buffer_free(x);
  polymux_buffer_free(y);
  polymux_queue_close(queue);
  polymux_close(client);
  return 0;
}
