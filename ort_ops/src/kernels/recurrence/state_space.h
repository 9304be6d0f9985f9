// The kernels of a selective state space (Mamba-2).
#pragma once

#include <stdint.h>

#include "kernels/recurrence/taps.h"

namespace tamiz {

/// Some tokens of one head; d_state is even.
struct StateSpaceArgs {
  const float *b, *c;       // [tokens, d_state]
  const float* x;           // [tokens, d_head]
  const float *decay, *dt;  // [tokens]
  float skip;
  const float* from;  // [d_state, d_head], the state before; may be `to`
  float* to;          // [d_state, d_head], the state after
  float* y;           // [tokens, d_head]
  int64_t tokens, d_state, d_head;
};

struct StateSpaceKernels {
  TapsKernel* taps;
  /// h = decay_t h + b_t (dt_t x_t)^T,  y_t = h^T c_t + skip x_t, token by token.
  void (*tokens)(const StateSpaceArgs& args);
};

}  // namespace tamiz
