// A factor on each row: y[r][i] = factors[r] x[r][i]
#pragma once

#include "kernels/basic/scale.h"
#include "simd/simd.h"

namespace tamiz {
namespace TAMIZ_TARGET {

inline void scale_rows(const float* x, const float* factors, int64_t rows, int64_t width,
                       float* y) {
  for (int64_t row = 0; row < rows; ++row, x += width, y += width) {
    const Vec factor = broadcast(factors[row]);
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) store(y + i, load(x + i) * factor);
    const int64_t rest = width - i;
    if (rest) store_partial(y + i, load_partial(x + i, rest) * factor, rest);
  }
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
