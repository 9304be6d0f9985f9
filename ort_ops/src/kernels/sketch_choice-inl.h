// The queries of a group choose keys together, by the mass that attention would give to a key:
//
//   mass_j = sum over queries of softmax_j(score)      the `keep` keys of largest mass
//
// roughly, but on every target the same: see sketch-inl.h.
//
// Included once per target.
#pragma once

#include <float.h>
#include <string.h>

#include "kernels/sketch.h"

namespace tamiz {
namespace TAMIZ_TARGET {

inline int32_t float_bits(float x) {
  int32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float float_of(int32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
/// An integer that orders as the float does, and back.
inline int32_t ordered(int32_t bits) { return bits ^ ((bits >> 31) & INT32_MAX); }
constexpr int32_t kExponent = 0x7f800000;
inline bool is_finite(float x) { return (float_bits(x) & kExponent) != kExponent; }

/// The largest finite score of a key that is not hidden; -FLT_MAX if there is none.
inline float largest_score(const float* score, const int32_t* rank, int64_t size) {
  const int32_t lowest = ordered(float_bits(-FLT_MAX));
  int32_t top = lowest;
  for (int64_t j = 0; j < size; ++j) {
    const int32_t bits = float_bits(score[j]);
    // Without a branch, so that compilers make vectors of it.
    const int32_t counts =
        -static_cast<int32_t>(((bits & kExponent) != kExponent) & (rank[j] != kHidden));
    const int32_t x = (ordered(bits) & counts) | (lowest & ~counts);
    top = x > top ? x : top;
  }
  return float_of(ordered(top));
}

/// exp(x) for x <= 0, within 6 %, never falling: linear between powers of two (Schraudolph 1999).
/// The sum comes before the product, so that no target makes one instruction of them.
inline float rough_exp(float x) {
  const float one = 1065353216.0f;
  float bits = (x + 88.0296919f) * 12102203.0f;
  bits = bits > 0.0f ? bits : 0.0f;
  bits = bits < one ? bits : one;
  return float_of(static_cast<int32_t>(bits));
}

/// Sum in sixteen chains, the same on every target.
inline float sum_in_chains(const float* x, int64_t size) {
  constexpr int kChains = 16;
  float chain[kChains] = {};
  int64_t j = 0;
  for (; j + kChains <= size; j += kChains) {
    for (int i = 0; i < kChains; ++i) chain[i] = chain[i] + x[j + i];
  }
  for (int i = 0; j + i < size; ++i) chain[i] = chain[i] + x[j + i];
  float total = 0.0f;
  for (int i = 0; i < kChains; ++i) total = total + chain[i];
  return total;
}

/// Turns the scores of a query into their softmax, roughly; 0 for hidden keys.
inline void rough_softmax(float* __restrict score, int32_t* __restrict rank, int64_t size) {
  const float top = largest_score(score, rank, size);
  for (int64_t j = 0; j < size; ++j) {
    const int32_t marked = is_finite(score[j]) ? rank[j] : kAlways - 1;
    rank[j] = rank[j] == kHidden ? kHidden : marked;
  }
  for (int64_t j = 0; j < size; ++j) {
    const float weight = rough_exp(score[j] - top);
    const float finite = is_finite(score[j]) ? weight : 0.0f;
    score[j] = rank[j] == kHidden ? 0.0f : finite;
  }
  const float total = sum_in_chains(score, size);
  const float factor = total > 0.0f ? 1.0f / total : 0.0f;
  for (int64_t j = 0; j < size; ++j) score[j] = score[j] * factor;
}

inline void sketch_rank(const SketchRankArgs& a) {
  for (int64_t j = 0; j < a.end; ++j) a.rank[j] = a.mask[j] ? 0 : kHidden;
  int64_t sinks = 0, sink = 0;
  for (; sink < a.end && sinks < a.sinks; ++sink) {
    if (a.mask[sink]) a.rank[sink] = kAlways, ++sinks;
  }
  const int64_t begin = a.begin > sink ? a.begin : sink;
  for (int64_t j = sink; j < begin; ++j) a.rank[j] = kHidden;
  const int64_t size = a.recent > begin ? a.recent - begin : 0;
  int32_t* const rank = a.rank + begin;
  float* const mass = a.scores + begin;
  for (int64_t i = 0; i < a.query_count; ++i) {
    const float* const score = mass + i * a.stride;
    rough_softmax(mass + i * a.stride, rank, size);
    for (int64_t j = 0; j < size && i > 0; ++j) mass[j] = mass[j] + score[j];
  }
  for (int64_t j = 0; j < size && a.query_count; ++j) {
    const int32_t bits = float_bits(mass[j]);  // positive floats order as their bits do
    rank[j] = rank[j] == 0 ? bits : rank[j];
  }
  for (int64_t j = a.recent > begin ? a.recent : begin; j < a.end; ++j) {
    a.rank[j] = a.rank[j] == kHidden ? kHidden : kAlways;
  }
}

constexpr int64_t kSelectBlock = 32;  // keys looked at one by one if one is chosen

inline int64_t count_from(const int32_t* rank, int64_t size, int32_t least) {
  int32_t count = 0;
  for (int64_t j = 0; j < size; ++j) count += rank[j] >= least;
  return count;
}

inline int64_t sketch_select(const int32_t* rank, int64_t size, int64_t keep, int32_t* indices) {
  const int64_t count = count_from(rank, size, kAlways) + keep;
  // The largest threshold that `count` ranks reach, by bisection.
  int64_t low = 0, high = kAlways;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    const int64_t reached = count_from(rank, size, static_cast<int32_t>(middle));
    if (reached >= count) low = middle;
    if (reached <= count) high = reached == count ? middle : middle - 1;
  }
  const int32_t least = static_cast<int32_t>(low);
  int64_t above = 0;
  if (least < kAlways) above = count_from(rank, size, least + 1);
  int64_t ties = count > above ? count - above : 0;
  int64_t found = 0;
  for (int64_t j0 = 0; j0 < size; j0 += kSelectBlock) {
    const int64_t end = j0 + kSelectBlock < size ? j0 + kSelectBlock : size;
    if (count_from(rank + j0, end - j0, least) == 0) continue;
    for (int64_t j = j0; j < end; ++j) {
      const bool tie = rank[j] == least && ties > 0;
      ties -= tie;
      indices[found] = static_cast<int32_t>(j);
      found += rank[j] > least || tie;
    }
  }
  return found;
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
