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
//
// Included once per target.
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/simd.h"
#include "kernels/sketch.h"
#include "kernels/sketch_choice-inl.h"

namespace tamiz {
namespace TAMIZ_TARGET {

// ---- packing ----

/// Bit of splitmix64 (Steele et al. 2014) at `index`: the fixed signs S.
inline bool flipped(uint64_t index) {
  uint64_t x = (index + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return (x ^ (x >> 31)) & 1;
}

inline void sketch_rotate(const float* x, const float* mean, int64_t dim, float* z) {
  const int64_t bits = sketch_bits(dim);
  for (int64_t d = 0; d < bits; ++d) {
    const float centred = d < dim ? (mean ? x[d] - mean[d] : x[d]) : 0.0f;
    z[d] = flipped(d) ? -centred : centred;
  }
  for (int64_t half = 1; half < bits; half *= 2) {
    for (int64_t start = 0; start < bits; start += 2 * half) {
      float* a = z + start;
      float* b = a + half;
      for (int64_t i = 0; i < half; ++i) {
        const float sum = a[i] + b[i];
        b[i] = a[i] - b[i];
        a[i] = sum;
      }
    }
  }
}

/// Sum in eight chains, the same on every target.
inline float sum_of_sizes(const float* z, int64_t bits, float above) {
  float chain[8] = {};
  for (int64_t d = 0; d < bits; d += 8) {
    for (int i = 0; i < 8; ++i) {
      const float size = fabsf(z[d + i]);
      chain[i] = chain[i] + (size > above ? size : 0.0f);
    }
  }
  for (int half = 4; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) chain[i] = chain[i] + chain[i + half];
  }
  return chain[0];
}

inline void set_bits(const float* z, int64_t bits, float sign, float above, uint32_t* plane) {
  for (int64_t word = 0; word < bits / 32; ++word) {
    uint32_t set = 0;
    for (int d = 0; d < 32; ++d) set |= uint32_t{z[word * 32 + d] * sign > above} << d;
    plane[word] = set;
  }
}

inline void sketch_pack(const float* z, int64_t bits, int64_t planes, float epsilon, float* row) {
  uint32_t words[2 * 1024 / 32];
  const float total = sum_of_sizes(z, bits, -1.0f);
  float gamma = total / static_cast<float>(bits);
  if (planes == 1) {
    set_bits(z, bits, -1.0f, 0.0f, words);
    for (int64_t i = 0; i < bits / 32; ++i) words[i] = ~words[i];
  } else {
    const float above = epsilon * gamma;
    set_bits(z, bits, 1.0f, above, words);
    set_bits(z, bits, -1.0f, above, words + bits / 32);
    int count = 0;
    for (int64_t d = 0; d < bits; ++d) count += fabsf(z[d]) > above;
    gamma = count ? sum_of_sizes(z, bits, above) / static_cast<float>(count) : 0.0f;
  }
  if (!(total <= FLT_MAX)) gamma = HUGE_VALF;
  const int64_t size = bits / 32 * planes;
  memcpy(row, words, sizeof(uint32_t) * size);
  row[size] = gamma;
}

inline void add_to_planes(int32_t q, int64_t d, int64_t bits, int64_t query_bits,
                          uint64_t* planes) {
  for (int64_t i = 0; i < query_bits; ++i) {
    planes[i * (bits / 64) + d / 64] |= static_cast<uint64_t>((q >> i) & 1) << (d % 64);
  }
}

inline SketchQuery sketch_pack_query(const float* z, int64_t bits, int64_t query_bits,
                                     int64_t key_planes, float epsilon, uint64_t* planes) {
  const float mean = sum_of_sizes(z, bits, -1.0f) / static_cast<float>(bits);
  float largest = 0.0f;
  for (int64_t d = 0; d < bits; ++d) largest = fabsf(z[d]) > largest ? fabsf(z[d]) : largest;
  const float most = static_cast<float>((1 << (query_bits - 1)) - 1);
  const bool as_keys = query_bits == 2;
  SketchQuery query = {planes, 0, as_keys ? mean : largest / most};
  memset(planes, 0, sizeof(uint64_t) * query_bits * bits / 64);
  if (!(mean <= FLT_MAX)) query.scale = HUGE_VALF;
  if (!(mean <= FLT_MAX) || query.scale == 0.0f) return query;
  const float above = key_planes == 1 ? 0.0f : epsilon * mean;
  for (int64_t d = 0; d < bits; ++d) {
    int32_t q;
    if (!as_keys) {
      q = static_cast<int32_t>(nearbyintf(z[d] / query.scale));
    } else if (key_planes == 1) {
      q = z[d] >= 0.0f ? 1 : -1;
    } else {
      q = (z[d] > above) - (z[d] < -above);
    }
    query.sum += q;
    add_to_planes(q, d, bits, query_bits, planes);
  }
  // H has rows of length sqrt(bits).
  query.scale = query.scale / static_cast<float>(bits) * kScoreUnits;
  return query;
}

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

/// A score in units as an integer.
inline int32_t whole_score(float score) {
  if (!(fabsf(score) <= FLT_MAX)) return kDamagedScore;
  const float most = static_cast<float>(kMostScore);
  return static_cast<int32_t>(score > most ? most : score < -most ? -most : score);
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

#if defined(TAMIZ_AVX512) || defined(TAMIZ_AVX2)
#include "kernels/sketch_scan-inl.h"
#else
inline int64_t scan_many(const SketchScanArgs&) { return 0; }
#endif

/// Marks what the mask hides, and finds the largest of the other scores.
inline void finish_scan(const SketchScanArgs& a) {
  int64_t hidden = 0;
  for (int64_t j = 0; j < a.keys; ++j) hidden += a.mask[j] == 0;
  for (int64_t i = 0; i < a.query_count; ++i) {
    int32_t* const score = a.scores + i * a.stride;
    for (int64_t j = 0; j < a.keys && hidden; ++j) score[j] = a.mask[j] ? score[j] : kHiddenScore;
    int32_t top = -kMostScore;
    for (int64_t j = 0; j < a.keys; ++j) {
      const int32_t x = score[j] == kDamagedScore ? -kMostScore : score[j];
      top = x > top ? x : top;
    }
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
