#include "ops/attention/attention_ports.h"

#include "base/shapes.h"
#include "ops/attention/key_value_cache.h"

namespace tamiz {

void check_attention(const CacheShape& shape, Ports inputs) {
  using In = AttentionInput;
  if (const Tensor& sink = inputs[In::head_sink]) {
    expect_shape("head_sink", sink, Shape{1, {shape.q_heads}}, "num_heads");
    if (inputs[In::past_event]) throw Error("past_event is given, expected none with head_sink");
  }
  if (const Tensor& weight = inputs[In::query_weight]) {
    expect_shape("query_weight", weight, Shape{1, {shape.dim}}, "head size");
  }
  if (const Tensor& slope = inputs[In::head_slope]) {
    expect_shape("head_slope", slope, Shape{1, {shape.q_heads}}, "num_heads");
    if (inputs[In::past_sketch]) throw Error("past_sketch is given, expected none with head_slope");
  }
  if (const Tensor& frequency = inputs[In::inverse_frequency]) {
    expect_rank("inverse_frequency", frequency, 1, "half the rotated dimensions");
    const int64_t half = frequency.shape.dims[0];
    if (2 * half > shape.dim) {
      throw Error("inverse_frequency has " + std::to_string(half) +
                  " elements, expected at most half the head size " + std::to_string(shape.dim));
    }
  }
}

}  // namespace tamiz
