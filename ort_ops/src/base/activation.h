// A function of each element, as stages hand it on.
#pragma once

#include <stdint.h>

namespace tamiz {

/// y = f(gate) * up for `count` elements; a null `up` is all ones. With a limit L > 0, which needs
/// an `up`: y = f(min(gate, L)) (min(max(up, -L), L) + 1).
using ActivationKernel = void (*)(const float* gate, const float* up, float limit, int64_t count,
                                  float* y);

}  // namespace tamiz
