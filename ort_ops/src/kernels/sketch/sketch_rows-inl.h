// kLanes rows of sketches at a time: their words, their scales, and storing their scores.
#pragma once

#include <stdint.h>

#include "kernels/sketch/sketch.h"
#include "simd/simd_int.h"

#if defined(TAMIZ_VECTORS)

namespace tamiz {
namespace TAMIZ_TARGET {

/// kLanes rows of kRow words: a long of the first or the last of them, a float of all.
template <int kRow>
struct Rows {
  static Ints longs(const float* p) { return every_long(p, kRow); }
  static Vec floats(const float* p) { return every(p, kRow); }
};
#if defined(TAMIZ_AVX512)
/// One plane of 64 bits and gamma: three vectors, sorted in registers. `p` is in the row's place.
template <>
struct Rows<3> {
  static Ints longs(const float* p) {
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
#endif

/// `whole_score` of kLanes scores. What is NaN or too large for an integer becomes the least one,
/// and so does its word: kDamagedScore. (max gives the second argument where one is NaN.)
inline void store_scores(int16_t* to, Vec score) {
  store_as_words(to, max(broadcast(static_cast<float>(kLeastScore)), score));
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
