#include "ops/attention/key_value_cache.h"

#include <algorithm>
#include <cstring>

#include "base/shapes.h"

namespace tamiz {
namespace {

constexpr int64_t kTaskCopy = 1 << 16;  // floats copied in one task

}  // namespace

KeyValueCache::KeyValueCache(const Attributes& attributes, const AttentionKernels& kernels)
    : bytes_(attributes.ints.at("cache_bits") == 8), kernels_(kernels) {
  const int64_t bits = attributes.ints.at("cache_bits");
  if (bits != 8 && bits != 32) {
    throw Error("cache_bits is " + std::to_string(bits) + ", expected 8 or 32");
  }
}

void KeyValueCache::infer(const Tensor& past_key, const Tensor& past_value, int64_t batch,
                          int64_t kv_heads, int64_t dim, int64_t tokens, int64_t keys,
                          Tensor& present_key, Tensor& present_value) const {
  if (bytes_ && dim % 4) {
    throw Error("the head size is " + std::to_string(dim) +
                ", expected a multiple of 4 where cache_bits is 8");
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
