// The causal convolution in front of a recurrence.
#pragma once

#include <stdint.h>

namespace tamiz {

/// Some channels of a causal convolution, one token.
struct TapsArgs {
  const float* const* rows;  // inputs of the last `taps` tokens, the oldest first; null: 0
  const float* weight;       // [taps, stride], the oldest token first
  const float* bias;         // [count]; null: 0
  int64_t taps, stride, count;
};

/// y = silu(bias + sum_j w_j u_j), element by element.
using TapsKernel = void(const TapsArgs& args, float* y);

}  // namespace tamiz
