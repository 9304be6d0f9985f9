// The kernel of a selective scan (the first version of Mamba).
#pragma once

#include <stdint.h>

namespace tamiz {

/// Some tokens of some channels, which have a state of d_state values each.
struct ScanArgs {
  const float *x, *dt;  // [tokens, channels], dt before softplus; rows are `stride` apart
  const float *b, *c;   // [tokens, d_state], likewise
  int64_t stride;
  const float* rate;  // [d_state, channels], rows are rate_stride apart
  int64_t rate_stride;
  const float* skip;  // [channels]
  const float* from;  // [d_state, channels], the state before; may be `to`
  float* to;          // [d_state, channels], the state after
  float* y;           // [tokens, channels]
  int64_t tokens, d_state, channels;
};

struct ScanKernels {
  /// h = exp(rate s_t) h + b_t (s_t x_t),  y_t = sum of c_t h + skip x_t, s_t = softplus(dt_t).
  void (*tokens)(const ScanArgs& args);
};

}  // namespace tamiz
