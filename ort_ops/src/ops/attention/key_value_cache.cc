#include "ops/attention/key_value_cache.h"

#include <algorithm>
#include <cstring>

#include "base/shapes.h"

namespace tamiz {
namespace {

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

void KeyValueCache::infer(const Tensor& past_key, const Tensor& past_value, int64_t batch,
                          int64_t kv_heads, int64_t dim, int64_t tokens, int64_t keys,
                          Tensor& present_key, Tensor& present_value) const {
  if (bytes_ && (dim % 4 || dim > kMostRoundedDim)) {
    throw Error("the head size is " + std::to_string(dim) + ", expected a multiple of 4 up to " +
                std::to_string(kMostRoundedDim) + " where cache_bits is 8");
  }
  const int64_t buffer = past_key.shape.dims[2];
  const Shape past = {4, {batch, kv_heads, buffer, words(dim)}};
  expect_shape("past_key", past_key, past,
               bytes_ ? "batch of q, kv_heads, past, head size / 4 + 1"
                      : "batch of q, kv_heads, past, head size");
  expect_shape("past_value", past_value, past, "the shape of past_key");
  if (buffer != keys - tokens && buffer < keys) {
    throw Error("past_key holds " + std::to_string(buffer) + " keys, expected " +
                std::to_string(keys - tokens) +
                " (exact length: attention_mask less sequence) or at least " +
                std::to_string(keys) + " (shared buffer)");
  }
  for (Tensor* present : {&present_key, &present_value}) {
    present->shape = past;
    present->shape.dims[2] = std::max(buffer, keys);
  }
}

void KeyValueCache::check_rounding(const Tensor& key_mean, const Tensor& key_scale,
                                   int64_t kv_heads, int64_t dim) const {
  const Shape shape = {2, {kv_heads, dim}};
  if (key_mean) expect_shape("key_mean", key_mean, shape, "kv_heads, head size");
  if (!key_scale) return;
  expect_shape("key_scale", key_scale, shape, "kv_heads, head size");
  if (!bytes_) throw Error("key_scale is given and cache_bits is 32, expected 8 with it");
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
