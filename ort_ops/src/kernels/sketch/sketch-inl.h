// Sketches by signs of a rotated vector (Charikar 2002; with the query kept at full precision,
// Gao and Long 2024), and by the two planes of a ternary one:
//
//   z = H S (k - mean)         a random rotation: no direction of k is special in z
//   binary   t_d = +1 if z_d >= 0 else -1
//   ternary  t_d = +1 if z_d > eps mean|z|, -1 if z_d < -eps mean|z|, else 0
//   gamma = mean of |z_d| where t_d != 0             z ~ gamma t in least squares
//   q.k ~ gamma sum_d q_d t_d / bits + constant, q the rotated query rounded to integers
//
// With q in two's complement, plane by plane Q_i, the sums are popcounts:
//
//   sum_d q_d [t_d = +1] = sum_i w_i popcount(Q_i & P),   w = 1, 2, 4, .., -2^(last)
//   binary:  2 (that) - sum_d q_d        ternary:  (that of P) - (that of N)
//
// A ternary query (two planes) gives P.P + N.N - P.N - N.P. The sums are integers, and floats are
// added in an order of their own, never in one instruction with a product: every target gives the
// same bits.
#pragma once

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/sketch/sketch.h"
#include "kernels/sketch/sketch_choice-inl.h"
#include "kernels/sketch/sketch_pack-inl.h"
#include "kernels/sketch/sketch_scan-inl.h"
#include "simd/simd.h"

namespace tamiz {
namespace TAMIZ_TARGET {

// ---- scan ----

inline uint64_t load_word(const float* p) {
  uint32_t half[2];
  memcpy(half, p, sizeof half);
  return half[0] | static_cast<uint64_t>(half[1]) << 32;
}

/// sum_d q_d [bit d of the plane], Horner's rule from the sign plane down.
inline int32_t dot_plane(const SketchQuery& q, int64_t query_bits, int64_t words,
                         const float* plane) {
  int32_t sum = 0;
  for (int64_t i = query_bits - 1; i >= 0; --i) {
    int32_t count = 0;
    for (int64_t w = 0; w < words; ++w) {
      count += __builtin_popcountll(q.planes[i * words + w] & load_word(plane + 2 * w));
    }
    sum = i == query_bits - 1 ? -count : 2 * sum + count;
  }
  return sum;
}

/// A score in units as an integer: as far as 16 bits reach; damaged where it is not finite.
inline int16_t whole_score(float score) {
  if (!(score < 2147483648.0f)) return kDamagedScore;
  if (score > INT16_MAX) return INT16_MAX;
  return score < kLeastScore ? kLeastScore : static_cast<int16_t>(score);
}

inline void scan_key(const SketchScanArgs& a, int64_t key) {
  const int64_t words = a.bits / 64;
  const float* row = a.rows + key * (2 * words * a.planes + 1);
  const float gamma = row[2 * words * a.planes];
  for (int64_t i = 0; i < a.query_count; ++i) {
    const SketchQuery& q = a.queries[i];
    const int32_t sum = dot_plane(q, a.query_bits, words, row);
    const int32_t dot =
        a.planes == 1 ? 2 * sum - q.sum : sum - dot_plane(q, a.query_bits, words, row + 2 * words);
    a.scores[i * a.stride + key] = whole_score(gamma * static_cast<float>(dot) * q.scale);
  }
}

/// Marks what the mask hides, and finds the largest of the other scores.
inline void finish_scan(const SketchScanArgs& a) {
  int64_t hidden = 0;
  for (int64_t j = 0; j < a.keys; ++j) hidden += a.mask[j] == 0;
  for (int64_t i = 0; i < a.query_count; ++i) {
    int16_t* const score = a.scores + i * a.stride;
    for (int64_t j = 0; j < a.keys && hidden; ++j) score[j] = a.mask[j] ? score[j] : kHiddenScore;
    int16_t top = kLeastScore;
    for (int64_t j = 0; j < a.keys; ++j) top = score[j] > top ? score[j] : top;
    a.tops[i] = top;
  }
}

inline void sketch_scan(const SketchScanArgs& a) {
  for (int64_t key = scan_many(a); key < a.keys; ++key) scan_key(a, key);
  finish_scan(a);
}

constexpr SketchKernels sketch_kernels = {sketch_rotate, sketch_pack, sketch_pack_query,
                                          sketch_scan,   sketch_rank, sketch_select};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
