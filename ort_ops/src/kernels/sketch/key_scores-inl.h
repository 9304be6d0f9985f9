// Scores of all keys, nearly exact, from a fourteenth of what keys and values take: keys are
// rotated, so that none of their elements stands out, and rounded to four bits (as QuaRot, Ashkboos
// et al. 2024, does); queries to eight.
//
//   z = H S (k - mean)      n_d = round(z_d / s) + 8,  s = max |z| / 7
//   score_j = s_j t sum_d q_d (n_jd - 8) / bits     q.(k - mean) nearly; t q the rotated query
//
// With a soft cap c, c tanh((score_j + q.mean) / c) stands for score_j (soft_cap-inl.h).
// A key is kept where a query of the group gives it a weight above a least one. The sums of
// products are integers below 2^24, so that they are exact as floats in any order.
#pragma once

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/attention/attention_cache-inl.h"
#include "kernels/attention/soft_cap-inl.h"
#include "kernels/sketch/key_scores.h"
#include "kernels/sketch/sketch_choice-inl.h"
#include "kernels/sketch/sketch_pack-inl.h"
#include "simd/simd_int.h"

namespace tamiz {
namespace TAMIZ_TARGET {

constexpr int64_t kNibbleChunk = 64;  // elements in 32 bytes
constexpr int64_t kLineFloats = 16;
constexpr int64_t kAheadOfScores = 4;  // vectors of rows; a task's are too few for the processor to
                                       // see that they follow each other

inline void pack_nibbles(const float* z, int64_t bits, float* row) {
  int8_t q[kMostSketchBits];
  const float scale = rounding_unit(z, bits, kMostNibble);
  round_bytes(z, bits, scale, q);
  auto* const bytes = reinterpret_cast<uint8_t*>(row);
  constexpr int64_t kHalf = kNibbleChunk / 2;
  for (int64_t d = 0; d < bits; d += kNibbleChunk) {
    for (int64_t i = 0; i < kHalf; ++i) {
      const int low = q[d + i] + 8, high = q[d + kHalf + i] + 8;
      bytes[d / 2 + i] = static_cast<uint8_t>(low | high << 4);
    }
  }
  row[bits / 8] = scale;
}

inline ScoreQuery pack_score_query(const float* z, int64_t bits, int8_t* bytes) {
  const float scale = rounding_unit(z, bits, 127.0f);
  round_bytes(z, bits, scale, bytes);
  int32_t sum = 0;
  for (int64_t d = 0; d < bits; ++d) sum += bytes[d];
  return {bytes, scale / static_cast<float>(bits), static_cast<float>(8 * sum)};
}

#if defined(TAMIZ_VECTORS)
constexpr int kHalfChunk = kNibbleChunk / 2;
constexpr int kRowsAVector = kLanes / 8;  // a row's half chunk takes 32 bytes
constexpr int kRowVectors = kLanes / kRowsAVector;

#if defined(TAMIZ_AVX512)
/// The rows i and i + 4 of 8 in a vector, so that `sum_rows` gives them in order.
inline Ints rows_at(const uint8_t* rows, int64_t size, int vector, int64_t at) {
  const uint8_t* first = rows + (vector / 4 * 8 + vector % 4) * size + at;
  const auto half = [](const uint8_t* row) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
  };
  return _mm512_inserti64x4(_mm512_castsi256_si512(half(first)), half(first + 4 * size), 1);
}
inline Ints both_halves(const int8_t* q) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(q)));
}
#else
inline Ints rows_at(const uint8_t* rows, int64_t size, int vector, int64_t at) {
  return load_ints(rows + vector * size + at);
}
inline Ints both_halves(const int8_t* q) { return load_ints(q); }
#endif
inline Ints nibble_dot(Ints low, Ints high, Ints q_low, Ints q_high) {
#if defined(TAMIZ_DOT)
  return dot_quads(dot_quads(all_ints(0), low, q_low), high, q_high);
#else
  const Ints words = words_plus(dot_bytes(low, q_low), dot_bytes(high, q_high));
  return dot_pairs(all_ints(0), words, all_words(1));
#endif
}
inline Ints sum_unpacked(Ints a, Ints b) { return ints_plus(low_ints(a, b), high_ints(a, b)); }
inline Ints sum_unpacked_twice(Ints a, Ints b) {
  return ints_plus(low_longs(a, b), high_longs(a, b));
}

inline Ints low_nibbles(Ints x) { return bits_and(x, all_words(0x0f0f)); }

/// Lane i: the sum of the eight integers that the vectors hold of row i.
inline Ints sum_rows(const Ints* v) {
  const Ints first = sum_unpacked_twice(sum_unpacked(v[0], v[1]), sum_unpacked(v[2], v[3]));
  const Ints second = sum_unpacked_twice(sum_unpacked(v[4], v[5]), sum_unpacked(v[6], v[7]));
  return sum_sides(first, second);
}

/// sum_d q_d n_d of kLanes rows, for every query: dots [query_count, stride].
inline void nibble_dots(const ScoreArgs& a, const uint8_t* rows, int64_t size, float* dots) {
  constexpr int kVector = sizeof(Ints);
  for (int64_t d = 0; d < a.bits; d += kNibbleChunk) {
    alignas(64) uint8_t nibbles[2 * kRowVectors * kVector];
    for (int i = 0; i < kRowVectors; ++i) {
      const Ints both = rows_at(rows, size, i, d / 2);
      store_ints(nibbles + 2 * i * kVector, low_nibbles(both));
      store_ints(nibbles + (2 * i + 1) * kVector, low_nibbles(words_right<4>(both)));
    }
    for (int64_t g = 0; g < a.query_count; ++g) {
      const int8_t* q = a.queries[g].bytes + d;
      const Ints low = both_halves(q), high = both_halves(q + kHalfChunk);
      Ints part[kRowVectors];
      for (int i = 0; i < kRowVectors; ++i) {
        part[i] = nibble_dot(load_ints(nibbles + 2 * i * kVector),
                             load_ints(nibbles + (2 * i + 1) * kVector), low, high);
      }
      const Vec dot = to_float(sum_rows(part));
      store(dots + g * a.stride, d ? dot + load(dots + g * a.stride) : dot);
    }
  }
}
#else
inline void nibble_dots(const ScoreArgs& a, const uint8_t* row, int64_t, float* dots) {
  constexpr int64_t kHalf = kNibbleChunk / 2;
  for (int64_t g = 0; g < a.query_count; ++g) {
    const int8_t* q = a.queries[g].bytes;
    int32_t sum = 0;
    for (int64_t d = 0; d < a.bits; d += kNibbleChunk) {
      for (int64_t i = 0; i < kHalf; ++i) {
        const int byte = row[d / 2 + i];
        sum += q[d + i] * (byte & 15) + q[d + kHalf + i] * (byte >> 4);
      }
    }
    dots[g * a.stride] = static_cast<float>(sum);
  }
}
#endif

/// Scores of kLanes keys, the first of which is called `key`.
inline void score_lanes(const ScoreArgs& a, const float* rows, int64_t key) {
  const int64_t words = sketch_words(a.bits, kNibblePlanes);
  const Vec scale = every(rows + words - 1, words);
  float* const scores = a.weights + key;
  nibble_dots(a, reinterpret_cast<const uint8_t*>(rows), sizeof(float) * words, scores);
  for (int64_t g = 0; g < a.query_count; ++g) {
    const ScoreQuery& query = a.queries[g];
    const Vec dot = load(scores + g * a.stride) - broadcast(query.sum);
    store(scores + g * a.stride, dot * (scale * broadcast(query.scale)));
  }
}

/// The last keys, if they fill no vector, are scored from a copy of their rows.
inline void score_all(const ScoreArgs& a) {
  const int64_t words = sketch_words(a.bits, kNibblePlanes);
  int64_t key = 0;
  for (; key + kLanes <= a.keys; key += kLanes) {
    const float* const rows = a.rows + key * words;
    for (int64_t i = 0; i < kLanes * words; i += kLineFloats) {
      __builtin_prefetch(rows + kAheadOfScores * kLanes * words + i, 0, 2);
    }
    score_lanes(a, rows, key);
  }
  if (key == a.keys) return;
  float copy[kLanes * sketch_words(kMostSketchBits, kNibblePlanes)];
  memset(copy, 0, sizeof(float) * kLanes * words);
  memcpy(copy, a.rows + key * words, sizeof(float) * (a.keys - key) * words);
  score_lanes(a, copy, key);
}

inline void cap_all(const ScoreArgs& a) {
  for (int64_t g = 0; g < a.query_count; ++g) {
    float* const scores = a.weights + g * a.stride;
    const Vec offset = broadcast(a.offsets[g]);
    for (int64_t j = 0; j < a.keys; j += kLanes) {
      store(scores + j, soft_cap(load(scores + j) + offset, a.softcap));
    }
  }
}

/// Hides the keys that the mask hides, and those behind the last one.
inline void hide(const ScoreArgs& a, int64_t whole) {
  int64_t hidden = 0;
  for (int64_t j = 0; j < a.keys; ++j) hidden += a.mask[j] == 0;
  for (int64_t j = hidden ? 0 : a.keys; j < whole; ++j) {
    if (j < a.keys && a.mask[j]) continue;
    for (int64_t g = 0; g < a.query_count; ++g) a.weights[g * a.stride + j] = -HUGE_VALF;
  }
}

inline void score_keys(const ScoreArgs& a) {
  const int64_t whole = (a.keys + kScoreBlock - 1) / kScoreBlock * kScoreBlock;
  score_all(a);
  if (a.softcap != 0.0f) cap_all(a);
  hide(a, whole);
  for (int64_t g = 0; g < a.query_count; ++g) {
    float* const weights = a.weights + g * a.stride;
    Vec top = broadcast(-FLT_MAX);
    for (int64_t j = 0; j < whole; j += kLanes) top = max(top, load(weights + j));
    const float m = largest(top);
    Vec total = broadcast(0.0f);
    for (int64_t j = 0; j < whole; j += kLanes) {
      const Vec weight = exp(load(weights + j) - broadcast(m));
      store(weights + j, weight);
      total = total + weight;
    }
    a.stats[2 * g] = m;
    a.stats[2 * g + 1] = sum(total);
  }
}

inline uint32_t shown(const int64_t* mask, int64_t count) {
  uint32_t bits = 0;
  for (int64_t j = 0; j < count && j < kScoreBlock; ++j) bits |= uint32_t{mask[j] != 0} << j;
  return bits;
}

/// Bit i: whether a query gives key j + i a weight above its least one.
inline uint32_t above_least(const ChooseArgs& a, int64_t j) {
  uint32_t kept = 0;
  for (int64_t g = 0; g < a.query_count; ++g) {
    const float* weights = a.weights + g * a.stride + j;
    for (int i = 0; i < kScoreBlock; i += kLanes) {
      kept |= lanes_above(load(weights + i), broadcast(a.least[g])) << i;
    }
  }
  return kept;
}

inline Chosen choose_keys(const ChooseArgs& a) {
  uint32_t kept[kMostChoice / kScoreBlock];
  Chosen found = {0, 0};
  for (int64_t j = 0; j < a.keys; j += kScoreBlock) {
    const uint32_t set = kept[j / kScoreBlock] = above_least(a, j);
    found.kept += write_indices(set, a.first + j, a.kept + found.kept);
    if (!a.others) continue;
    const uint32_t others = shown(a.mask + j, a.keys - j) & ~set;
    found.others += write_indices(others, a.first + j, a.others + found.others);
  }
  for (int64_t g = 0; g < a.query_count; ++g) {
    Vec left = broadcast(0.0f);
    for (int64_t j = 0; j < a.keys; j += kLanes) {
      const uint32_t others = ~kept[j / kScoreBlock] >> j % kScoreBlock;
      left = left + keep_lanes(load(a.weights + g * a.stride + j), others);
    }
    a.left[g] = sum(left);
  }
  return found;
}

constexpr KeyScoreKernels key_score_kernels = {pack_nibbles, pack_score_query, score_keys,
                                               choose_keys};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
