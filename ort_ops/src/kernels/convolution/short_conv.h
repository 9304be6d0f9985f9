// The kernel of a short convolution.
#pragma once

#include <stdint.h>

namespace tamiz {

/// One token of a short convolution, `count` channels of it.
struct ShortConvArgs {
  const float *b, *c, *x;       // gate of the input, gate of the output, input; null gates: 1
  const float* const* earlier;  // u of the taps - 1 tokens before, oldest first; null: 0
  const float* weight;          // [taps, stride], the oldest token first
  const float* bias;            // [count]; null: 0
  int64_t taps, stride, count;
  bool hidden;  // u_t is 0
  bool silu;    // f(s) = s / (1 + exp(-s)); otherwise s
  float *u, *y;
};

struct ShortConvKernels {
  /// u_t = b_t x_t,  y_t = c_t f(bias + sum_j w_j u_(t - taps + 1 + j)), element by element.
  void (*token)(const ShortConvArgs& args);
};

}  // namespace tamiz
