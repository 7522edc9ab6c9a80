// copy(x) -> y.
#include "operands.hpp"
#include "parallel.hpp"

using namespace polymux::kernels;

POLYMUX_KERNEL(copy) {
  return run(call, [](Operands& operands) {
    const Array x = operands.buffer("x"), y = operands.buffer("y");
    operands.finish();
    require_same_dtype(y, x);
    require_same_shape(y, x);
    require_apart_or_same(y, x);
    if (y.data == x.data) {
      return;
    }
    parallel_for(operands.threads(), x.nbytes(), kGrainNbytes, [&](uint64_t begin, uint64_t end) {
      std::memcpy(y.as<char>() + begin, x.as<char>() + begin, end - begin);
    });
  });
}
