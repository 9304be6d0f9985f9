// kLanes rows of sketches at a time: their words, their scales, and storing their scores.
#pragma once

#include <stdint.h>

#include "kernels/sketch/sketch.h"
#include "simd/simd.h"

#if defined(TAMIZ_AVX512) || defined(TAMIZ_AVX2)

namespace tamiz {
namespace TAMIZ_TARGET {

#if defined(TAMIZ_AVX512)
using Words = __m512i;
inline Words words_zero() { return _mm512_setzero_si512(); }
inline Words words_all(uint64_t x) { return _mm512_set1_epi64(static_cast<long long>(x)); }
inline Words words_add(Words a, Words b) { return _mm512_add_epi64(a, b); }
inline Words words_sub(Words a, Words b) { return _mm512_sub_epi64(a, b); }
inline Words count_common(Words a, Words b) { return _mm512_popcnt_epi64(_mm512_and_si512(a, b)); }
inline Vec to_floats(Words low, Words high) {
  const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi64_epi32(low)),
                                          _mm512_cvtepi64_epi32(high), 1);
  return _mm512_cvtepi32_ps(both);
}
inline void store_words(int16_t* to, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtsepi32_epi16(_mm512_cvttps_epi32(x)));
}

/// kLanes rows of kRow words.
template <int kRow>
struct Rows {
  static Words words(const float* p) {
    const __m256i at =
        _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(kRow));
    return _mm512_i32gather_epi64(at, p, 4);
  }
  static Vec floats(const float* p) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_i32gather_ps(_mm512_mullo_epi32(lane, _mm512_set1_epi32(kRow)), p, 4);
  }
};
/// One plane of 64 bits and gamma: three vectors, sorted in registers. `p` is in the row's place.
template <>
struct Rows<3> {
  static Words words(const float* p) {
    const __m512i at = _mm512_setr_epi32(0, 1, 3, 4, 6, 7, 9, 10, 12, 13, 15, 16, 18, 19, 21, 22);
    const __m512i rest =
        _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + kLanes)));
    return _mm512_permutex2var_epi32(_mm512_loadu_si512(p), at, rest);
  }
  static Vec floats(const float* p) {
    const __m512i at = _mm512_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 0, 0, 0, 0, 0);
    const __m512i rest = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 6, 9, 12, 15);
    // The last vector begins 30 floats on, and so ends with the last gamma.
    const Vec first = _mm512_permutex2var_ps(load(p), at, load(p + kLanes));
    return _mm512_mask_permutexvar_ps(first, 0xf800, rest, load(p + 30));
  }
};
#else
using Words = __m256i;
inline Words words_zero() { return _mm256_setzero_si256(); }
inline Words words_all(uint64_t x) { return _mm256_set1_epi64x(static_cast<long long>(x)); }
inline Words words_add(Words a, Words b) { return _mm256_add_epi64(a, b); }
inline Words words_sub(Words a, Words b) { return _mm256_sub_epi64(a, b); }
/// Popcount by nibbles (Mula 2008).
inline Words count_common(Words a, Words b) {
  const Words low = _mm256_set1_epi8(15);
  const Words table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,  //
                                       0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
  const Words x = _mm256_and_si256(a, b);
  const Words count =
      _mm256_add_epi8(_mm256_shuffle_epi8(table, _mm256_and_si256(x, low)),
                      _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(x, 4), low)));
  return _mm256_sad_epu8(count, _mm256_setzero_si256());
}
inline Vec to_floats(Words low, Words high) {
  const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  return _mm256_cvtepi32_ps(_mm256_blend_epi32(_mm256_permutevar8x32_epi32(low, even),
                                               _mm256_permutevar8x32_epi32(high, even), 0xf0));
}
inline void store_words(int16_t* to, Vec x) {
  const __m256i whole = _mm256_cvttps_epi32(x);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(to),
      _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1)));
}

template <int kRow>
struct Rows {
  static Words words(const float* p) {
    const __m128i at = _mm_setr_epi32(0, kRow, 2 * kRow, 3 * kRow);
    return _mm256_i32gather_epi64(reinterpret_cast<const long long*>(p), at, 4);
  }
  static Vec floats(const float* p) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_i32gather_ps(p, _mm256_mullo_epi32(lane, _mm256_set1_epi32(kRow)), 4);
  }
};
#endif

/// `whole_score` of kLanes scores. What is NaN or too large for an integer becomes the least one,
/// and so does its word: kDamagedScore. (max gives the second argument where one is NaN.)
inline void store_scores(int16_t* to, Vec score) {
  store_words(to, max(broadcast(static_cast<float>(kLeastScore)), score));
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
