/* A system of linear equations by Gaussian elimination, over several task queues: the application of
 * polymux.apps.gaussian as a C program, through polymux.h alone.
 *
 *     polymux up &          the server
 *     make && ./gaussian    or ./gaussian PATH N QUEUES: socket ("" for the default one), equations, queues
 *
 * Blocks of rows go to the queues in turn. For one block after the other, its queue lets the rows eliminate each other
 * (gaussian_pivots); then all queues subtract multiples of these pivots from the rows that they have below
 * (gaussian_update). Back substitution is done here. The system is made from a known solution, which is the check, and
 * the result is handed to another application, which checks it as well.
 */
#include <inttypes.h>
#include <math.h>
#include <polymux.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBlock = 32, kMostQueues = 16, kMostEquations = 20000 };

static void check(polymux_status status, const char* what) {
  if (status == POLYMUX_OK) return;
  fprintf(stderr, "gaussian: %s: %s: %s\n", what, polymux_status_name(status), polymux_last_error());
  exit(1);
}

static float* map(polymux_buffer* buffer) {
  void* data;
  check(polymux_buffer_map(buffer, POLYMUX_FOREVER, &data), "map");
  return data;
}

/* The number that the solution has at `i`, and the matrix at row i and column j: diagonally dominant, so that no row
 * has to be exchanged. */
static double solution_at(int64_t i) { return (double)(i % 7) - 3.0; }

static float matrix_at(int64_t i, int64_t j, int64_t n) {
  const uint32_t mixed = (uint32_t)(i * 7919 + j * 104729) * UINT32_C(2654435761);
  return (float)(mixed >> 8) / (float)(1 << 24) + (i == j ? 0.5f * (float)n : 0.0f);
}

/* Row i of the system: the matrix, the right-hand side, and zeros up to `columns`. */
static void write_row(float* row, int64_t i, int64_t n, int64_t columns) {
  double sum = 0.0;
  memset(row, 0, (size_t)columns * sizeof *row);
  for (int64_t j = 0; j < n; ++j) {
    row[j] = matrix_at(i, j, n);
    sum += row[j] * solution_at(j);
  }
  row[n] = (float)sum;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* A queue and the blocks of rows that it has, one below the other in one buffer. */
typedef struct {
  polymux_queue* queue;
  polymux_buffer* rows;
  int64_t n_rows;
} part;

/* The scalars of both kernels, in their order. */
typedef struct {
  int64_t first, column;
} block_arguments;

static part open_part(polymux_client* client, int64_t index, int64_t n_parts, int64_t n, int64_t columns) {
  char name[32];
  part made = {0};
  snprintf(name, sizeof name, "gaussian-%" PRId64, index);
  for (int64_t start = index * kBlock; start < n; start += n_parts * kBlock) made.n_rows += smaller(kBlock, n - start);
  const int64_t shape[] = {made.n_rows, columns};
  const polymux_queue_options options = {
      .name = name,
      .memory_nbytes = (uint64_t)(made.n_rows * columns) * sizeof(float),
  };
  check(polymux_queue_open(client, &options, &made.queue), "open a queue");
  check(polymux_buffer_alloc(client, POLYMUX_F32, 2, shape, 0, &made.rows), "allocate rows");
  float* row = map(made.rows);
  for (int64_t start = index * kBlock; start < n; start += n_parts * kBlock) {
    for (int64_t i = start; i < start + kBlock && i < n; ++i, row += columns) write_row(row, i, n, columns);
  }
  return made;
}

/* Eliminates; afterwards pivots[i] holds the rows of block i of a triangular system. */
static void eliminate(polymux_client* client, part* parts, int64_t n_parts, polymux_buffer** pivots, int64_t n,
                      int64_t columns) {
  static const uint8_t make[] = {POLYMUX_READ, POLYMUX_WRITE}, update[] = {POLYMUX_READ, POLYMUX_READ, POLYMUX_WRITE};
  uint32_t gaussian_pivots, gaussian_update;
  check(polymux_kernel_find(client, "gaussian_pivots", &gaussian_pivots), "find gaussian_pivots");
  check(polymux_kernel_find(client, "gaussian_update", &gaussian_update), "find gaussian_update");
  for (int64_t block = 0; block * kBlock < n; ++block) {
    const int64_t start = block * kBlock, owner = block % n_parts;
    const int64_t shape[] = {smaller(kBlock, n - start), columns};
    check(polymux_buffer_alloc(client, POLYMUX_F32, 2, shape, 0, &pivots[block]), "allocate pivots");
    block_arguments arguments = {block / n_parts * kBlock, start};
    polymux_buffer* const made[] = {parts[owner].rows, pivots[block]};
    polymux_task task;
    check(polymux_submit(parts[owner].queue, gaussian_pivots, 2, made, make, &arguments, sizeof arguments, NULL, &task),
          "submit gaussian_pivots");
    if (n_parts > 1) check(polymux_wait(task, POLYMUX_FOREVER), "gaussian_pivots"); /* the other queues read them */
    for (int64_t i = 0; i < n_parts; ++i) {
      arguments.first = (block / n_parts + (i <= owner ? 1 : 0)) * kBlock; /* the first row below the block */
      if (arguments.first >= parts[i].n_rows) continue;
      polymux_buffer* const used[] = {parts[i].rows, pivots[block], parts[i].rows};
      check(polymux_submit(parts[i].queue, gaussian_update, 3, used, update, &arguments, sizeof arguments, NULL, NULL),
            "submit gaussian_update");
    }
  }
  for (int64_t i = 0; i < n_parts; ++i) {
    check(polymux_synchronize(parts[i].queue, POLYMUX_FOREVER), "eliminate");
  }
}

static void substitute(polymux_buffer* const* pivots, float* x, int64_t n, int64_t columns) {
  for (int64_t block = (n - 1) / kBlock; block >= 0; --block) {
    const float* rows = map(pivots[block]);
    for (int64_t i = smaller(n, (block + 1) * kBlock) - 1; i >= block * kBlock; --i) {
      const float* row = rows + (i - block * kBlock) * columns;
      double rest = row[n];
      for (int64_t j = i + 1; j < n; ++j) rest -= (double)row[j] * x[j];
      x[i] = (float)(rest / row[i]);
    }
  }
}

static double largest_error(const float* x, int64_t n) {
  double largest = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    const double error = fabs(x[i] - solution_at(i));
    if (!(error <= largest)) largest = error; /* a NaN is the largest of all */
  }
  return largest;
}

/* Another application, which knows nothing but the token. */
static double error_elsewhere(const char* socket_path, const char* token, int64_t n) {
  polymux_client* client;
  polymux_buffer* x;
  check(polymux_connect(&(polymux_connect_options){.socket_path = socket_path, .name = "gaussian-reader"}, &client),
        "connect a second time");
  check(polymux_buffer_import(client, token, &x), "import the result");
  const double error = largest_error(map(x), n);
  polymux_buffer_free(x);
  polymux_close(client);
  return error;
}

static int64_t number(const char* text, int64_t most, const char* what) {
  char* end;
  const int64_t value = strtoll(text, &end, 10);
  if (*text != '\0' && *end == '\0' && value >= 1 && value <= most) return value;
  fprintf(stderr, "gaussian: %s are '%s'; give a whole number from 1 to %" PRId64 "\n", what, text, most);
  exit(2);
}

int main(int argc, char** argv) {
  const char* socket_path = argc > 1 && *argv[1] != '\0' ? argv[1] : NULL;
  const int64_t n = argc > 2 ? number(argv[2], kMostEquations, "the equations") : 1000;
  const int64_t wanted = argc > 3 ? number(argv[3], kMostQueues, "the queues") : 2;
  const int64_t n_blocks = (n + kBlock - 1) / kBlock, n_parts = smaller(wanted, n_blocks);
  const int64_t columns = (n + 1 + 15) / 16 * 16; /* rows begin where vectors do */
  const polymux_connect_options options = {
      .socket_path = socket_path,
      .name = "gaussian",
      .segment_nbytes = (uint64_t)(3 * n * columns) * sizeof(float) + (UINT64_C(64) << 20),
  };
  polymux_client* client;
  polymux_buffer* x;
  part parts[kMostQueues];
  char token[POLYMUX_TOKEN_NBYTES];

  check(polymux_connect(&options, &client), "connect");
  for (int64_t i = 0; i < n_parts; ++i) parts[i] = open_part(client, i, n_parts, n, columns);
  polymux_buffer** pivots = calloc((size_t)n_blocks, sizeof *pivots);
  if (pivots == NULL) return 1;
  eliminate(client, parts, n_parts, pivots, n, columns);

  check(polymux_buffer_alloc(client, POLYMUX_F32, 1, &n, POLYMUX_SHAREABLE, &x), "allocate the result");
  substitute(pivots, map(x), n, columns);
  const double error = largest_error(map(x), n);
  printf("gaussian: %" PRId64 " equations over %" PRId64 " queue%s, largest error %.1e\n", n, n_parts,
         n_parts > 1 ? "s" : "", error);

  check(polymux_buffer_export(x, token), "export the result");
  const double other = error_elsewhere(socket_path, token, n);
  check(polymux_buffer_revoke(x), "revoke");
  printf("gaussian: another application has read the result, largest error %.1e\n", other);

  for (int64_t i = 0; i < n_blocks; ++i) polymux_buffer_free(pivots[i]);
  for (int64_t i = 0; i < n_parts; ++i) {
    polymux_buffer_free(parts[i].rows);
    polymux_queue_close(parts[i].queue);
  }
  polymux_buffer_free(x);
  polymux_close(client);
  free(pivots);
  return error < 1e-3 && other == error ? 0 : 1;
}
