// softmax_cross_entropy(x, labels) -> loss, dx: the loss of each row of scores, and the gradient of their mean.
#include <cmath>

#include "operands.hpp"
#include "parallel.hpp"

using namespace polymux::kernels;

namespace {

// One row, in double precision; the largest score is subtracted first, so that nothing overflows.
template <class T>
void classify(const T* x, uint64_t label, uint64_t classes, double rows, T* loss, T* dx) {
  const double largest = static_cast<double>(*std::max_element(x, x + classes));
  double total = 0;
  for (uint64_t i = 0; i < classes; ++i) {
    total += std::exp(static_cast<double>(x[i]) - largest);
  }
  *loss = static_cast<T>(std::log(total) - (static_cast<double>(x[label]) - largest));
  for (uint64_t i = 0; i < classes; ++i) {
    const double probability = std::exp(static_cast<double>(x[i]) - largest) / total;
    dx[i] = static_cast<T>((probability - (i == label ? 1 : 0)) / rows);
  }
}

}  // namespace

POLYMUX_KERNEL(softmax_cross_entropy) {
  return run(call, [](Operands& operands) {
    const Array x = operands.buffer("x"), labels = operands.buffer("labels"), loss = operands.buffer("loss"),
                dx = operands.buffer("dx");
    operands.finish();
    require_same_dtype(loss, x);
    require_same_dtype(dx, x);
    require_rank(x, 2, "(rows, classes)");
    require_shape(labels, x.shape().first(1), "one for each row of x");
    require_shape(loss, x.shape().first(1), "one for each row of x");
    require_same_shape(dx, x);
    for (const Array* output : {&loss, &dx}) {
      require_apart(*output, x);
      require_apart(*output, labels);
    }
    require_apart(dx, loss);
    const uint64_t rows = x.extent(0), classes = x.extent(1);
    for_dtype<int32_t, int64_t>(labels, [&]<class L>() {
      for (uint64_t row = 0; row < rows; ++row) {
        const L label = labels.as<L>()[row];
        if (label < 0 || static_cast<uint64_t>(label) >= classes) {
          refuse("labels[" + std::to_string(row) + "] is " + std::to_string(label) + ", expected 0 to " +
                 std::to_string(static_cast<int64_t>(classes) - 1));
        }
      }
      for_dtype<float, double>(x, [&]<class T>() {
        parallel_for(operands.threads(), rows, (uint64_t{1} << 17) / (classes + 1) + 1,
                     [&](uint64_t begin, uint64_t end) {
                       for (uint64_t row = begin; row < end; ++row) {
                         classify(x.as<T>() + row * classes, static_cast<uint64_t>(labels.as<L>()[row]), classes,
                                  static_cast<double>(rows), loss.as<T>() + row, dx.as<T>() + row * classes);
                       }
                     });
      });
    });
  });
}
