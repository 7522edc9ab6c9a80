/* Many dependent tasks: the heat equation on a square plate, one task for each time step, with a kernel of our own
 * (kernel_library.c, which the server loads from kernels.toml). Tasks of one queue run in order, so the program submits
 * all steps without waiting and synchronizes once.
 *
 *     make
 *     polymux up --kernels kernels.toml &
 *     ./heat                or ./heat PATH for a server on another socket
 *
 * The start is an eigenfunction of the discrete Laplacian: a step scales it by a known factor, which is the check.
 */
#include <inttypes.h>
#include <math.h>
#include <polymux.h>
#include <stdio.h>
#include <stdlib.h>

enum { kSide = 512, kSteps = 500 };
static const double kPi = 3.14159265358979323846;

static void check(polymux_status status, const char* what) {
  if (status == POLYMUX_OK) return;
  fprintf(stderr, "heat: %s: %s: %s\n", what, polymux_status_name(status), polymux_last_error());
  exit(1);
}

static double start_at(int row, int column) { return sin(kPi * row / (kSide - 1)) * sin(kPi * column / (kSide - 1)); }

static double* map(polymux_buffer* buffer) {
  void* data;
  check(polymux_buffer_map(buffer, POLYMUX_FOREVER, &data), "map");
  return data;
}

/* The largest deviation from the exact solution of the discrete equation. */
static double largest_error(const double* plate, double factor) {
  double largest = 0.0;
  for (int row = 0; row < kSide; ++row) {
    for (int column = 0; column < kSide; ++column) {
      const double error = fabs(plate[row * kSide + column] - factor * start_at(row, column));
      if (!(error <= largest)) largest = error; /* a NaN is the largest of all */
    }
  }
  return largest;
}

int main(int argc, char** argv) {
  const double alpha = 0.2; /* diffusivity * time step / spacing^2; stable up to 0.25 */
  const int64_t shape[] = {kSide, kSide};
  polymux_client* client;
  polymux_queue* queue;
  polymux_buffer* plates[2];
  uint32_t heat_step;

  const polymux_connect_options options = {.socket_path = argc > 1 ? argv[1] : NULL, .name = "heat"};
  check(polymux_connect(&options, &client), "connect");
  check(polymux_kernel_find(client, "heat_step", &heat_step), "find the kernel (polymux up --kernels kernels.toml)");
  check(polymux_queue_open(client, NULL, &queue), "open a queue");
  for (int i = 0; i < 2; ++i) {
    check(polymux_buffer_alloc(client, POLYMUX_F64, 2, shape, 0, &plates[i]), "allocate a plate");
  }
  double* plate = map(plates[0]);
  for (int row = 0; row < kSide; ++row) {
    for (int column = 0; column < kSide; ++column) plate[row * kSide + column] = start_at(row, column);
  }

  static const uint8_t accesses[] = {POLYMUX_READ, POLYMUX_WRITE};
  for (int step = 0; step < kSteps; ++step) { /* waits for room whenever the queue is full */
    polymux_buffer* const buffers[] = {plates[step % 2], plates[(step + 1) % 2]};
    check(polymux_submit(queue, heat_step, 2, buffers, accesses, &alpha, sizeof alpha, NULL, NULL), "submit");
  }
  check(polymux_synchronize(queue, POLYMUX_FOREVER), "heat_step");

  const double factor = pow(1.0 - 4.0 * alpha * (1.0 - cos(kPi / (kSide - 1))), kSteps);
  const double error = largest_error(map(plates[kSteps % 2]), factor);
  printf("heat: %d steps of a %d x %d plate, largest error %.1e\n", kSteps, kSide, kSide, error);

  for (int i = 0; i < 2; ++i) polymux_buffer_free(plates[i]);
  polymux_queue_close(queue);
  polymux_close(client);
  return error < 1e-9 ? 0 : 1;
}
