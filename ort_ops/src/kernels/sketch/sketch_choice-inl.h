// The queries of a group choose keys together, by the largest share that one of them would give:
//
//   share_j = max over queries of exp(score_j - largest score)       the `keep` keys of largest
//   share
//
// Within a factor of the group it orders as the sum of the queries' softmaxes does, and takes
// integers only: every target chooses the same keys.
#pragma once

#include <string.h>

#include "kernels/sketch/sketch.h"
#include "simd/simd_int.h"

namespace tamiz {
namespace TAMIZ_TARGET {

constexpr uint16_t kDamagedRank = kAlways - 1;
constexpr uint16_t kBestRank = kDamagedRank - 1;

inline int16_t largest_top(const SketchRankArgs& a, int64_t query) {
  int16_t top = kLeastScore;
  for (int64_t r = 0; r < a.ranges; ++r) {
    const int16_t x = a.tops[r * a.query_count + query];
    top = x > top ? x : top;
  }
  return top;
}

constexpr int64_t kRankPart = 1024;

/// Ranks of up to kRankPart keys from `begin` on. A distance to the largest score has 16 bits.
inline void rank_part(const SketchRankArgs& a, int64_t begin, int64_t size) {
  uint16_t below[kRankPart];
  uint16_t damaged[kRankPart];
  for (int64_t j = 0; j < size; ++j) below[j] = kBestRank - 1, damaged[j] = 0;
  for (int64_t i = 0; i < a.query_count; ++i) {
    const int16_t* score = a.scores + i * a.stride + begin;
    const uint16_t top = static_cast<uint16_t>(largest_top(a, i));
    for (int64_t j = 0; j < size; ++j) {
      const uint16_t x = static_cast<uint16_t>(top - static_cast<uint16_t>(score[j]));
      below[j] = x < below[j] ? x : below[j];
      damaged[j] |= score[j] == kDamagedScore ? UINT16_MAX : 0;
    }
  }
  const int16_t* score = a.scores + begin;
  uint16_t* rank = a.rank + begin;
  for (int64_t j = 0; j < size; ++j) {
    const uint16_t seen = damaged[j] ? kDamagedRank : static_cast<uint16_t>(kBestRank - below[j]);
    rank[j] = score[j] == kHiddenScore ? kNever : seen;
  }
}

inline void sketch_rank(const SketchRankArgs& a) {
  const int64_t whole = (a.end + kRankBlock - 1) / kRankBlock * kRankBlock;
  memset(a.rank, 0, sizeof(uint16_t) * whole);
  for (int64_t j = a.begin; j < a.recent && a.query_count; j += kRankPart) {
    rank_part(a, j, a.recent - j < kRankPart ? a.recent - j : kRankPart);
  }
  int64_t sinks = 0;
  for (int64_t j = 0; j < a.end && sinks < a.sinks; ++j) {
    if (a.mask[j]) a.rank[j] = kAlways, ++sinks;
  }
  for (int64_t j = a.recent; j < a.end; ++j) a.rank[j] = a.mask[j] ? kAlways : kNever;
}

/// Bit j: whether rank[j] >= least, of kRankBlock ranks.
inline uint32_t at_least(const uint16_t* rank, uint16_t least) {
#if defined(TAMIZ_VECTORS)
  return words_at_least(rank, least);
#else
  uint32_t set = 0;
  for (int j = 0; j < kRankBlock; ++j) set |= uint32_t{rank[j] >= least} << j;
  return set;
#endif
}

#if defined(TAMIZ_AVX512)
/// Counts in 16 bits by lanes, which at most 2^16 blocks fill.
inline int64_t count_part(const uint16_t* rank, int64_t size, uint16_t least) {
  const __m512i one = _mm512_set1_epi16(1);
  const __m512i t = _mm512_set1_epi16(static_cast<int16_t>(least));
  __m512i lanes = _mm512_setzero_si512();
  for (int64_t j = 0; j < size; j += kRankBlock) {
    const __mmask32 set = _mm512_cmpge_epu16_mask(_mm512_loadu_si512(rank + j), t);
    lanes = _mm512_mask_add_epi16(lanes, set, lanes, one);
  }
  const __m512i low = _mm512_and_si512(lanes, _mm512_set1_epi32(UINT16_MAX));
  return _mm512_reduce_add_epi32(_mm512_add_epi32(low, _mm512_srli_epi32(lanes, 16)));
}
#else
inline int64_t count_part(const uint16_t* rank, int64_t size, uint16_t least) {
  int64_t count = 0;
  for (int64_t j = 0; j < size; j += kRankBlock) {
    count += __builtin_popcount(at_least(rank + j, least));
  }
  return count;
}
#endif

inline int64_t count_at_least(const uint16_t* rank, int64_t size, uint16_t least) {
  constexpr int64_t kPart = int64_t{UINT16_MAX} * kRankBlock;
  int64_t count = 0;
  for (int64_t j = 0; j < size; j += kPart) {
    count += count_part(rank + j, size - j < kPart ? size - j : kPart, least);
  }
  return count;
}

/// The largest rank above kNever that at least `count` keys reach, by bisection; 1 if none.
inline uint16_t threshold(const uint16_t* rank, int64_t size, int64_t count) {
  int32_t low = 1, high = kAlways;
  while (low < high) {
    const int32_t middle = low + (high - low + 1) / 2;
    const int64_t reached = count_at_least(rank, size, static_cast<uint16_t>(middle));
    if (reached >= count) low = middle;
    if (reached <= count) high = reached == count ? middle : middle - 1;
  }
  return static_cast<uint16_t>(low);
}

/// Writes first + i for every bit i that is set; returns how many.
inline int64_t write_indices(uint32_t set, int64_t first, int32_t* indices) {
  const int count = __builtin_popcount(set);
#if defined(TAMIZ_AVX512)
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int i = 0; i < kRankBlock; i += 16) {
    const auto half = static_cast<__mmask16>(set >> i);
    const __m512i index = _mm512_add_epi32(lane, _mm512_set1_epi32(static_cast<int>(first) + i));
    const auto filled = static_cast<__mmask16>((1u << __builtin_popcount(half)) - 1);
    _mm512_mask_storeu_epi32(indices, filled, _mm512_maskz_compress_epi32(half, index));
    indices += __builtin_popcount(half);
  }
#else
  for (; set; set &= set - 1) *indices++ = static_cast<int32_t>(first + __builtin_ctz(set));
#endif
  return count;
}

inline int64_t sketch_select(const uint16_t* rank, int64_t size, int64_t keep, int32_t* indices) {
  const int64_t count = count_at_least(rank, size, kAlways) + keep;
  const uint16_t least = threshold(rank, size, count);
  const uint16_t more = static_cast<uint16_t>(least < kAlways ? least + 1 : least);
  int64_t ties = count - count_at_least(rank, size, more);
  int64_t found = 0;
  for (int64_t j = 0; j < size; j += kRankBlock) {
    const uint32_t set = at_least(rank + j, least);
    if (!set) continue;
    const uint32_t above = at_least(rank + j, more);
    uint32_t equal = set & ~above;
    while (__builtin_popcount(equal) > ties) equal ^= 1u << (31 - __builtin_clz(equal));
    ties -= __builtin_popcount(equal);
    found += write_indices(above | equal, j, indices + found);
  }
  return found;
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
