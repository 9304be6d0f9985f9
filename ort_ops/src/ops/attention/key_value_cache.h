// The keys and values that the stage Attention keeps, and whatever else has a row a key.
//
// A past is of exact length, or a buffer of at least as many rows as there will be keys; its
// present then has the same shape, and may lie in the same memory. How a row is stored: see
// kernels/attention/attention_cache-inl.h. Without values of their own the keys, as they are
// stored, are the values, too. Where elements are bytes, the key k' is stored and meets the query
// q':
//
//   k' = (k - mean) / scale,  q' = q scale         q'.k' = q.k - q.mean, elementwise products
//
// so that channels of unlike sizes share the scale of a row, and none is rounded away. The constant
// of the query changes no softmax. It would change a capped score, the weight of a sink, and a key
// that is a value: with any of them mean is 0.
#pragma once

#include <initializer_list>

#include "base/attributes.h"
#include "base/tensor.h"
#include "engine/stage.h"
#include "kernels/attention/attention.h"

namespace tamiz {

/// Sizes of one call of attention. `capacity` counts the rows of the present cache.
struct CacheShape {
  int64_t batch, tokens, keys, past, capacity;
  int64_t q_heads, kv_heads, dim, group;

  /// The row of KV head `head` (of batch * kv_heads) in a constant [kv_heads, dim], or null.
  const float* row_of(const Tensor& constant, int64_t head) const {
    return constant ? constant.as<float>() + head % kv_heads * dim : nullptr;
  }
};

/// Whether keys are stored less their mean, where it is given.
bool stores_centred_keys(const Attributes& attributes);

class KeyValueCache {
 public:
  KeyValueCache(const Attributes& attributes, const AttentionKernels& kernels);

  /// Checks keys and values, new and past, and gives the presents their shape. Throws Error.
  void infer(const CacheShape& shape, Ports inputs, Ports outputs) const;

  /// Checks key_mean and key_scale, each of which may be missing. Throws Error.
  void check_rounding(const CacheShape& shape, Ports inputs) const;

  /// k → k' of KV head `head` (of batch * kv_heads), in place.
  void prepare_key(const CacheShape& shape, int64_t head, const Tensor& key_mean,
                   const Tensor& key_scale, float* key) const;

  /// q → q' of the queries [group, dim] of a KV head, in place.
  void prepare_queries(const CacheShape& shape, int64_t head, const Tensor& key_scale,
                       float* queries) const;

  bool bytes() const { return bytes_; }
  int64_t words(int64_t dim) const { return cache_words(dim, bytes_); }

  /// Stores x [dim] of KV head `head` (of batch * kv_heads) at row `at` of a present.
  void store(const CacheShape& shape, const float* x, int64_t head, int64_t at,
             const Tensor& present) const {
    const int64_t row = head * shape.capacity + at;
    kernels_.store_row(x, shape.dim, bytes_, present.as<float>() + row * words(shape.dim));
  }

  /// The rows of a KV head.
  const float* rows(const CacheShape& shape, const Tensor& present, int64_t head) const {
    return present.as<float>() + head * shape.capacity * words(shape.dim);
  }

 private:
  Shape check_pasts(const CacheShape& shape, Ports inputs) const;
  void check_other(const CacheShape& shape, Ports inputs, Ports outputs) const;

  const bool bytes_, centred_;
  const AttentionKernels& kernels_;
};

/// What attention keeps of every key: its input and its output.
struct Cached {
  const Tensor* past;
  const Tensor* present;
};

/// The copy of the pasts that do not lie in the memory of their present.
class PastCopy {
 public:
  /// Throws Error where one lies there but is not as long.
  PastCopy(const CacheShape& shape, std::initializer_list<Cached> cached);

  int64_t tasks() const { return count_ * heads_ * pieces_; }
  void run(int64_t task) const;

 private:
  static constexpr int kMost = 3;

  int64_t heads_, pieces_, past_, capacity_;
  int count_ = 0;
  Cached copied_[kMost];
};

}  // namespace tamiz
