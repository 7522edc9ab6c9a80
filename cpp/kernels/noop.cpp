// noop(...): does nothing; what one task costs.
#include "operands.hpp"

POLYMUX_KERNEL(noop) {
  static_cast<void>(call);
  return 0;
}
