// Kernels of sketches: a few bits of a vector that estimate its dot products with others, and
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

constexpr int64_t kMostSketchBits = 1024;

/// 32-bit words of a sketch: one plane (signs) or two (positive, negative), then gamma as float.
constexpr int64_t sketch_words(int64_t dim, int64_t planes) {
  return sketch_bits(dim) / 32 * planes + 1;
}

/// A rotated query as integers q_d, in two's complement bit by bit.
struct SketchQuery {
  const uint64_t* planes;  // [query_bits, bits / 64]: bit d of plane i is bit i of q_d
  int32_t sum;             // of all q_d
  float scale;             // the query is scale / kScoreUnits * bits * q
};

/// Scores are integers, so that every target ranks alike: units of 1 / kScoreUnits nats.
constexpr float kScoreUnits = 256.0f;
constexpr int16_t kLeastScore = INT16_MIN + 2;
/// Of a key whose score is not finite, and of a key that the mask hides.
constexpr int16_t kDamagedScore = INT16_MIN;
constexpr int16_t kHiddenScore = INT16_MIN + 1;

struct SketchScanArgs {
  const float* rows;    // [keys, words]: sketches
  const int64_t* mask;  // [keys]: 0 hides a key
  int64_t keys, bits, planes;
  const SketchQuery* queries;
  int64_t query_count, query_bits;
  int16_t* scores;  // [query_count, stride]
  int64_t stride;
  int16_t* tops;  // [query_count]: the largest score that is neither damaged nor hidden
};

struct SketchRankArgs {
  const int16_t* scores;  // [query_count, stride]
  int64_t query_count, stride;
  const int16_t* tops;  // [ranges, query_count]: of the parts that were scanned
  int64_t ranges;
  const int64_t* mask;  // [end]: 0 hides a key
  int64_t sinks;        // that many of the first visible keys are chosen always
  int64_t begin;        // of the others none before `begin`
  int64_t recent, end;  // and all from `recent` on
  uint16_t* rank;       // [whole kRankBlocks]: 0 from `end` on
};

/// Ranks of keys that are never and that are always chosen.
constexpr uint16_t kNever = 0;
constexpr uint16_t kAlways = UINT16_MAX;
constexpr int64_t kRankBlock = 32;

struct SketchKernels {
  /// z = H S (x - mean): S flips fixed signs, H is the Hadamard matrix of order `bits`; x and
  /// mean [dim] are padded with zeros, a null mean is 0.
  void (*rotate)(const float* x, const float* mean, int64_t dim, float* z);

  /// The sketch of z [bits]: one plane holds z >= 0; two hold z > a and z < -a, a = epsilon
  /// mean|z|. gamma is the mean of |z| where a plane has a bit, NaN where z is not finite.
  void (*pack)(const float* z, int64_t bits, int64_t planes, float epsilon, float* row);

  /// q = round(z / scale) with query_bits bits; with two bits q is packed as the keys are: their t.
  SketchQuery (*pack_query)(const float* z, int64_t bits, int64_t query_bits, int64_t key_planes,
                            float epsilon, uint64_t* planes);

  /// score_j = gamma_j * scale * sum_d q_d t_jd in units, t the signs +-1 or the ternary +1, 0, -1.
  void (*scan)(const SketchScanArgs&);

  /// rank_j orders the keys by the largest share that a query would give them: by
  /// max over queries of (score_j - largest score), down to -256 nats; damaged keys rank higher.
  void (*rank)(const SketchRankArgs&);

  /// The indices, in ascending order, of all ranks kAlways and of the `keep` largest others, among
  /// equals the lower ones; fewer where others are never chosen. `rank` [size] goes on with zeros
  /// up to whole kRankBlocks, `indices` has room for `size`. Returns how many there are.
  int64_t (*select)(const uint16_t* rank, int64_t size, int64_t keep, int32_t* indices);
};

}  // namespace tamiz
