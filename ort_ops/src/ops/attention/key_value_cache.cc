#include "ops/attention/key_value_cache.h"

#include <algorithm>
#include <cstring>

#include "base/shapes.h"
#include "ops/attention/attention_ports.h"

namespace tamiz {
namespace {

using In = AttentionInput;
using Out = AttentionOutput;

constexpr int64_t kTaskCopy = 1 << 16;  // floats copied in one task

}  // namespace

bool stores_centred_keys(const Attributes& attributes) {
  return attributes.ints.at("cache_bits") == 8 && attributes.floats.at("softcap") == 0;
}

KeyValueCache::KeyValueCache(const Attributes& attributes, const AttentionKernels& kernels)
    : bytes_(attributes.ints.at("cache_bits") == 8),
      centred_(stores_centred_keys(attributes)),
      kernels_(kernels) {
  const int64_t bits = attributes.ints.at("cache_bits");
  if (bits != 8 && bits != 32) {
    throw Error("cache_bits is " + std::to_string(bits) + ", expected 8 or 32");
  }
}

void KeyValueCache::infer(const CacheShape& shape, Ports inputs, Ports outputs) const {
  if (!stores(inputs)) return check_other(shape, inputs, outputs);
  const Tensor& v = inputs[In::v];
  const Shape kv = {3, {shape.batch, shape.tokens, shape.kv_heads * shape.dim}};
  expect_shape("k", inputs[In::k], kv, "batch and sequence of q, kv_heads * head size");
  if (v) expect_shape("v", v, kv, "batch and sequence of q, kv_heads * head size");
  for (const Tensor* other : {&inputs[In::past_value], &outputs[Out::present_value]}) {
    if (static_cast<bool>(*other) != static_cast<bool>(v)) {
      throw Error("v, past_value and present_value are given in part, expected all or none");
    }
  }
  if (!outputs[Out::present_key]) throw Error("present_key is omitted, expected it with k");
  Shape past = check_pasts(shape, inputs);
  const int64_t buffer = past.dims[2], exact = shape.past;
  if (buffer != exact && buffer < shape.keys) {
    throw Error("past_key holds " + std::to_string(buffer) + " keys, expected " +
                std::to_string(exact) + " (exact length: attention_mask less sequence) or at " +
                "least " + std::to_string(shape.keys) + " (shared buffer)");
  }
  past.dims[2] = std::max(buffer, shape.keys);
  outputs[Out::present_key].shape = past;
  outputs[Out::present_value].shape = past;
}

void KeyValueCache::check_other(const CacheShape& shape, Ports inputs, Ports outputs) const {
  for (const size_t i : {In::v, In::past_sketch, In::past_event}) {
    if (inputs[i]) throw Error("k is omitted, expected neither v, past_sketch nor past_event");
  }
  for (const size_t o : {Out::present_key, Out::present_value}) {
    if (outputs[o]) throw Error("k is omitted, expected no present");
  }
  const Shape past = check_pasts(shape, inputs);
  if (past.dims[2] < shape.keys) {
    throw Error("past_key holds " + std::to_string(past.dims[2]) + " keys, expected at least " +
                std::to_string(shape.keys) + " where k is omitted");
  }
}

Shape KeyValueCache::check_pasts(const CacheShape& shape, Ports inputs) const {
  if (bytes_ && (shape.dim % 4 || shape.dim > kMostRoundedDim)) {
    throw Error("the head size is " + std::to_string(shape.dim) +
                ", expected a multiple of 4 up to " + std::to_string(kMostRoundedDim) +
                " where cache_bits is 8");
  }
  const int64_t rows = inputs[In::past_key].shape.dims[2];
  const Shape past = {4, {shape.batch, shape.kv_heads, rows, words(shape.dim)}};
  expect_shape("past_key", inputs[In::past_key], past,
               bytes_ ? "batch of q, kv_heads, past, head size / 4 + 1"
                      : "batch of q, kv_heads, past, head size");
  if (has_values(inputs)) {
    expect_shape("past_value", inputs[In::past_value], past, "the shape of past_key");
  }
  return past;
}

void KeyValueCache::check_rounding(const CacheShape& shape, Ports inputs) const {
  const Shape constants = {2, {shape.kv_heads, shape.dim}};
  const Tensor &key_mean = inputs[In::key_mean], &key_scale = inputs[In::key_scale];
  if (key_mean) expect_shape("key_mean", key_mean, constants, "kv_heads, head size");
  if (!key_scale) return;
  expect_shape("key_scale", key_scale, constants, "kv_heads, head size");
  if (!bytes_) throw Error("key_scale is given and cache_bits is 32, expected 8 with it");
  if (!has_values(inputs)) {
    throw Error("key_scale is given, expected none where the values are the keys");
  }
}

void KeyValueCache::prepare_key(const CacheShape& shape, int64_t head, const Tensor& key_mean,
                                const Tensor& key_scale, float* key) const {
  const float* const mean = centred_ ? shape.row_of(key_mean, head) : nullptr;
  const float* const scale = shape.row_of(key_scale, head);
  for (int64_t d = 0; d < shape.dim && mean; ++d) key[d] -= mean[d];
  for (int64_t d = 0; d < shape.dim && scale; ++d) key[d] /= scale[d];
}

void KeyValueCache::prepare_queries(const CacheShape& shape, int64_t head, const Tensor& key_scale,
                                    float* queries) const {
  const float* const scale = shape.row_of(key_scale, head);
  for (int64_t g = 0; g < shape.group && scale; ++g) {
    for (int64_t d = 0; d < shape.dim; ++d) queries[g * shape.dim + d] *= scale[d];
  }
}

PastCopy::PastCopy(const CacheShape& shape, std::initializer_list<Cached> cached)
    : heads_(shape.batch * shape.kv_heads),
      pieces_(divide_up(shape.past * shape.dim, kTaskCopy)),
      past_(shape.past),
      capacity_(shape.capacity) {
  for (const Cached& state : cached) {
    const Tensor& past = *state.past;
    if (!past || shape.past == 0) continue;
    if (past.data != state.present->data) {
      copied_[count_++] = state;
    } else if (past.shape.dims[2] != shape.capacity) {
      throw Error("past and present share memory but past holds " +
                  std::to_string(past.shape.dims[2]) + " keys, expected the full capacity " +
                  std::to_string(shape.capacity));
    }
  }
}

void PastCopy::run(int64_t task) const {
  const Tensor& past = *copied_[task / (heads_ * pieces_)].past;
  const Tensor& present = *copied_[task / (heads_ * pieces_)].present;
  const int64_t head = task / pieces_ % heads_;
  const int64_t width = past.shape.dims[3];
  const int64_t begin = task % pieces_ * past_ / pieces_ * width;
  const int64_t end = (task % pieces_ + 1) * past_ / pieces_ * width;
  std::memcpy(present.as<float>() + head * capacity_ * width + begin,
              past.as<float>() + head * past.shape.dims[2] * width + begin,
              sizeof(float) * (end - begin));
}

}  // namespace tamiz
