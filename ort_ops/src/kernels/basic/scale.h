// The kernel of factors on rows.
#pragma once

#include <stdint.h>

namespace tamiz {

/// y[r][i] = factors[r] x[r][i] for `rows` rows of `width`; y may be x.
using ScaleKernel = void(const float* x, const float* factors, int64_t rows, int64_t width,
                         float* y);

}  // namespace tamiz
