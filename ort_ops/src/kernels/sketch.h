// Kernels of sketches: a few bits of a vector that tell its dot products with others roughly, and
// the choice of the vectors whose dot product is large.
#pragma once

#include <stdint.h>

namespace tamiz {

/// Bits of a sketch of `dim` elements: the power of two, at least 64, that holds them.
constexpr int64_t sketch_bits(int64_t dim) {
  int64_t bits = 64;
  while (bits < dim) bits *= 2;
  return bits;
}

/// 32-bit words of a sketch: one plane (signs) or two (positive, negative), then gamma as float.
constexpr int64_t sketch_words(int64_t dim, int64_t planes) {
  return sketch_bits(dim) / 32 * planes + 1;
}

/// A rotated query as integers q_d, in two's complement bit by bit.
struct SketchQuery {
  const uint64_t* planes;  // [query_bits, bits / 64]: bit d of plane i is bit i of q_d
  int32_t sum;             // of all q_d
  float scale;             // the query is scale * bits * q
};

struct SketchScanArgs {
  const float* rows;  // [keys, words]: sketches
  int64_t keys, bits, planes;
  const SketchQuery* queries;
  int64_t query_count, query_bits;
  float* scores;  // [query_count, stride]
  int64_t stride;
};

struct SketchRankArgs {
  float* scores;  // [query_count, stride]; destroyed
  int64_t query_count, stride;
  const int64_t* mask;  // [end]: 0 hides a key
  int64_t sinks;        // that many of the first visible keys are chosen always
  int64_t begin;        // of the others none before `begin`
  int64_t recent, end;  // and all from `recent` on
  int32_t* rank;        // [end]
};

/// Ranks that no score has.
constexpr int32_t kHidden = INT32_MIN;
constexpr int32_t kAlways = INT32_MAX;

struct SketchKernels {
  /// z = H S (x - mean): S flips fixed signs, H is the Hadamard matrix of order `bits`; x and
  /// mean [dim] are padded with zeros, a null mean is 0.
  void (*rotate)(const float* x, const float* mean, int64_t dim, float* z);

  /// The sketch of z [bits]: one plane holds z >= 0; two hold z > a and z < -a, a = epsilon
  /// mean|z|. gamma is the mean of |z| where a plane has a bit, infinite where z is not finite.
  void (*pack)(const float* z, int64_t bits, int64_t planes, float epsilon, float* row);

  /// q = round(z / scale) with query_bits bits; with two bits q is packed as the keys are: their t.
  SketchQuery (*pack_query)(const float* z, int64_t bits, int64_t query_bits, int64_t key_planes,
                            float epsilon, uint64_t* planes);

  /// score_j = gamma_j * scale * sum_d q_d t_jd, t the signs +-1 or the ternary +1, 0, -1.
  void (*scan)(const SketchScanArgs&);

  /// rank_j orders the keys as sum over queries of softmax_j(scores) does, roughly; keys whose
  /// score is not finite stand above all others.
  void (*rank)(const SketchRankArgs&);

  /// The indices, in ascending order, of all ranks kAlways and of the `keep` largest others, among
  /// equals the lower ones; fewer where others are hidden. `indices` has room for `size`. Returns
  /// how many there are.
  int64_t (*select)(const int32_t* rank, int64_t size, int64_t keep, int32_t* indices);
};

}  // namespace tamiz
