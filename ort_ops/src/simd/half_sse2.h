// What simd/halves.h needs of 16 bytes, by SSE2, which every x86-64 processor has.
#pragma once

#include <emmintrin.h>

#include "simd/half.h"

namespace tamiz {
namespace TAMIZ_TARGET {

TAMIZ_ALWAYS_INLINE Floats4 half_max(Floats4 a, Floats4 b) { return _mm_max_ps(a, b); }
TAMIZ_ALWAYS_INLINE Floats4 half_min(Floats4 a, Floats4 b) { return _mm_min_ps(a, b); }
TAMIZ_ALWAYS_INLINE Doubles2 low_doubles(Floats4 x) { return _mm_cvtps_pd(x); }
TAMIZ_ALWAYS_INLINE Doubles2 high_doubles(Floats4 x) { return _mm_cvtps_pd(_mm_movehl_ps(x, x)); }
TAMIZ_ALWAYS_INLINE Floats4 join_doubles(Doubles2 low, Doubles2 high) {
  return _mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high));
}
TAMIZ_ALWAYS_INLINE Floats4 half_to_floats(Ints4 x) { return _mm_cvtepi32_ps(as<__m128i>(x)); }
TAMIZ_ALWAYS_INLINE Ints4 half_to_ints(Floats4 x) { return as<Ints4>(_mm_cvtps_epi32(x)); }
TAMIZ_ALWAYS_INLINE Ints4 half_ints_max(Ints4 a, Ints4 b) {
  const Ints4 above = a > b;
  return (above & a) | (~above & b);
}
TAMIZ_ALWAYS_INLINE Ints4 half_dot_pairs(Ints4 sum, Ints4 a, Ints4 b) {
  return sum + as<Ints4>(_mm_madd_epi16(as<__m128i>(a), as<__m128i>(b)));
}
TAMIZ_ALWAYS_INLINE Ints4 half_pack_words(Ints4 a, Ints4 b) {
  const __m128i words = _mm_packs_epi32(as<__m128i>(a), as<__m128i>(b));
  return as<Ints4>(_mm_shufflehi_epi16(_mm_shufflelo_epi16(words, 0xd8), 0xd8));
}
TAMIZ_ALWAYS_INLINE uint32_t first_bits(Ints4 x) {
  return static_cast<uint32_t>(_mm_movemask_ps(as<Floats4>(x)));
}
TAMIZ_ALWAYS_INLINE uint32_t first_byte_bits(UBytes16 x) {
  return static_cast<uint32_t>(_mm_movemask_epi8(as<__m128i>(x)));
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#include "simd/half_baseline.h"
