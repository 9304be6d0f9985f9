// The kernels of a gated delta net.
#pragma once

#include <stdint.h>

#include "kernels/recurrence/taps.h"

namespace tamiz {

/// Some tokens of one value head; d_k is even.
struct DeltaRuleArgs {
  const float *q, *k, *v;     // [tokens, d_k], [tokens, d_k], [tokens, d_v]
  const float *decay, *beta;  // [tokens]
  const float* from;          // [d_k, d_v], the state before; may be `to`
  float* to;                  // [d_k, d_v], the state after
  float* y;                   // [tokens, d_v]
  int64_t tokens, d_k, d_v;
};

struct DeltaNetKernels {
  TapsKernel* taps;
  /// x = factor x / sqrt(sum x^2 + epsilon)
  void (*unit)(float* x, int64_t count, float factor, float epsilon);
  /// S = decay_t S + k_t (beta_t (v_t - decay_t S^T k_t))^T,  y_t = S^T q_t, token by token.
  void (*tokens)(const DeltaRuleArgs& args);
  /// y = x / sqrt(mean(x^2) + epsilon) weight silu(gate)
  void (*gated_norm)(const float* x, const float* gate, const float* weight, float epsilon,
                     int64_t count, float* y);
};

}  // namespace tamiz
