// Packing of sketches and of queries; equations: sketch-inl.h.
#pragma once

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/sketch/sketch.h"
#include "simd/simd_int.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// The fixed signs S: lowest bits of splitmix64 (Steele et al. 2014).
struct Signs {
  float sign[kMostSketchBits] = {};
  constexpr Signs() {
    for (uint64_t d = 0; d < kMostSketchBits; ++d) {
      uint64_t x = (d + 1) * 0x9e3779b97f4a7c15u;
      x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
      x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
      sign[d] = (x ^ (x >> 31)) & 1 ? -1.0f : 1.0f;
    }
  }
};
constexpr Signs kSigns;

inline void sketch_rotate(const float* x, const float* mean, int64_t dim, float* z) {
  const int64_t bits = sketch_bits(dim);
  for (int64_t d = 0; d < dim; ++d) z[d] = (mean ? x[d] - mean[d] : x[d]) * kSigns.sign[d];
  for (int64_t d = dim; d < bits; ++d) z[d] = 0.0f;
  for (int64_t d = 0; d < bits && kLanes > 1; d += kLanes) {
    Vec lanes = load(z + d);
    for (int half = 1; half < kLanes; half *= 2) lanes = butterfly(lanes, half);
    store(z + d, lanes);
  }
  for (int64_t half = kLanes; half < bits; half *= 2) {
    for (int64_t start = 0; start < bits; start += 2 * half) {
      for (int64_t i = start; i < start + half; i += kLanes) {
        const Vec a = load(z + i);
        const Vec b = load(z + i + half);
        store(z + i, a + b);
        store(z + i + half, a - b);
      }
    }
  }
}

/// Sum of |z_d| > above in eight chains, the same on every target.
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

/// Sets bit d where sign z_d > above; returns how many.
inline int set_bits(const float* z, int64_t bits, float sign, float above, uint32_t* plane) {
  int count = 0;
  for (int64_t word = 0; word < bits / 32; ++word) {
    uint32_t set = 0;
    for (int d = 0; d < 32; d += kLanes) {
      set |= lanes_above(load(z + word * 32 + d) * broadcast(sign), broadcast(above)) << d;
    }
    plane[word] = set;
    count += __builtin_popcount(set);
  }
  return count;
}

inline void sketch_pack(const float* z, int64_t bits, int64_t planes, float epsilon, float* row) {
  uint32_t words[2 * kMostSketchBits / 32];
  const float total = sum_of_sizes(z, bits, -1.0f);
  float gamma = total / static_cast<float>(bits);
  if (planes == 1) {
    set_bits(z, bits, -1.0f, 0.0f, words);
    for (int64_t i = 0; i < bits / 32; ++i) words[i] = ~words[i];
  } else {
    const float above = epsilon * gamma;
    int count = set_bits(z, bits, 1.0f, above, words);
    count += set_bits(z, bits, -1.0f, above, words + bits / 32);
    gamma = count ? sum_of_sizes(z, bits, above) / static_cast<float>(count) : 0.0f;
  }
  if (!(total <= FLT_MAX)) gamma = NAN;
  const int64_t size = bits / 32 * planes;
  memcpy(row, words, sizeof(uint32_t) * size);
  row[size] = gamma;
}

/// How the elements of a query become integers.
struct Rounding {
  float scale;  // q = round(z / scale), ..
  float above;  // .. or, where it is not negative, q = 1 if z > above, -1 if z < -above, else 0
};

inline Vec rounded(Vec z, Rounding how) {
  if (how.above < 0.0f) return round(z / broadcast(how.scale));
  const Vec zero = broadcast(0.0f);
  const Vec above = broadcast(how.above);
  const Vec up = how.above == 0.0f ? select_le(zero, z, broadcast(1.0f), zero)
                                   : select_le(z, above, zero, broadcast(1.0f));
  return select_le(zero - above, z, up, broadcast(-1.0f));
}

/// The bits of integers q_d, of which it returns the sum.
inline int32_t pack_integers(const float* z, int64_t bits, int64_t query_bits, Rounding how,
                             uint64_t* planes) {
  const int top = static_cast<int>(query_bits) - 1;
  int32_t sum = 0;
  for (int64_t d = 0; d < bits; d += kLanes) {
    // Not negative, the bits are those of two's complement but for the first.
    Vec rest = rounded(load(z + d), how) + broadcast(static_cast<float>(1 << top));
    for (int i = top; i >= 0; --i) {
      const Vec value = broadcast(static_cast<float>(1 << i));
      const Vec less = value - broadcast(0.5f);
      const uint64_t set = lanes_above(rest, less);
      rest = select_le(rest, less, rest, rest - value);
      planes[i * (bits / 64) + d / 64] |= set << (d % 64);
      sum += __builtin_popcountll(set) << i;
    }
  }
  for (int64_t w = 0; w < bits / 64; ++w) planes[top * (bits / 64) + w] ^= UINT64_MAX;
  return sum - (static_cast<int32_t>(bits) << top);
}

inline SketchQuery sketch_pack_query(const float* z, int64_t bits, int64_t query_bits,
                                     int64_t key_planes, float epsilon, uint64_t* planes) {
  const float mean = sum_of_sizes(z, bits, -1.0f) / static_cast<float>(bits);
  Vec top = broadcast(0.0f);
  for (int64_t d = 0; d < bits; d += kLanes) {
    const Vec x = load(z + d);
    top = max(top, max(x, broadcast(0.0f) - x));
  }
  const float most = static_cast<float>((1 << (query_bits - 1)) - 1);
  const bool as_keys = query_bits == 2;
  SketchQuery query = {planes, 0, as_keys ? mean : largest(top) / most};
  memset(planes, 0, sizeof(uint64_t) * query_bits * bits / 64);
  if (!(mean <= FLT_MAX)) query.scale = NAN;
  if (!(query.scale > 0.0f)) return query;
  const Rounding how = {query.scale, !as_keys ? -1.0f : key_planes == 1 ? 0.0f : epsilon * mean};
  query.sum = pack_integers(z, bits, query_bits, how, planes);
  // H has rows of length sqrt(bits).
  query.scale = query.scale / static_cast<float>(bits) * kScoreUnits;
  return query;
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
