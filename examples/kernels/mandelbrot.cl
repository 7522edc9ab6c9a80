// Parameters: the buffers (inputs, then outputs), then the arguments that kernels.toml lists.
#pragma OPENCL FP_CONTRACT OFF // the same image as the Python version's

__kernel void mandelbrot(__global int *iterations, long rows, long columns, double left, double top, double step,
                         int limit) {
  const long column = get_global_id(0), row = get_global_id(1);
  if (column >= columns || row >= rows) return;
  const double re = left + column * step, im = top + row * step;
  double x = 0, y = 0;
  int count = 0;
  for (; count < limit; ++count) {
    const double xx = x * x, yy = y * y;
    if (!(xx + yy <= 4.0)) break;
    y = (x + x) * y + im;
    x = xx - yy + re;
  }
  iterations[row * columns + column] = count;
}
