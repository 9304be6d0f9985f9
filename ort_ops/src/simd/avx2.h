// AVX2, FMA and F16C; with TAMIZ_DOT AVX-VNNI. simd/simd.h and simd/simd_int.h say what the
// functions do.
#pragma once

#include <stdint.h>
#include <string.h>

#include "simd/target.h"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wunknown-warning-option"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

namespace tamiz {
namespace TAMIZ_TARGET {

using Vec = __m256;
constexpr int kLanes = 8;

inline Vec broadcast(float x) { return _mm256_set1_ps(x); }
inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
inline __m256i first_lanes(int64_t n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
}
inline Vec load_partial(const float* p, int64_t n) { return _mm256_maskload_ps(p, first_lanes(n)); }
inline void store_partial(float* p, Vec x, int64_t n) { _mm256_maskstore_ps(p, first_lanes(n), x); }
inline Vec bytes_to_float(const int8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec abs(Vec x) { return _mm256_andnot_ps(broadcast(-0.0f), x); }
inline Vec round(Vec x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Vec floor(Vec x) { return _mm256_floor_ps(x); }
inline float sum(Vec x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline float largest(Vec x) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
inline Vec select_le(Vec a, Vec b, Vec yes, Vec no) {
  return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LE_OQ));
}
inline Vec power_of_two(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
/// In two steps, because 2^n itself may be no float where x * 2^n is one.
inline Vec times_power_of_two(Vec x, Vec n) {
  const __m256i all = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(all, 1);
  return x * power_of_two(half) * power_of_two(_mm256_sub_epi32(all, half));
}

inline Vec pick_of_eight(const float* table, __m256i x) {
  return _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), x);
}

constexpr int kQuad = 4;
inline Vec sum_quad(const Vec (&x)[kQuad]) {
  return _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
}
constexpr int kLaneOrder[] = {0, 1, 2, 3, 4, 5, 6, 7};
inline Vec join_quads(const Vec (&x)[kLanes / kQuad]) {
  return _mm256_permute2f128_ps(x[0], x[1], 0x20) + _mm256_permute2f128_ps(x[0], x[1], 0x31);
}

using Ints = __m256i;

inline Ints load_ints(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void store_ints(void* p, Ints x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
inline Ints all_words(int x) { return _mm256_set1_epi16(static_cast<short>(x)); }
inline Ints all_ints(int x) { return _mm256_set1_epi32(x); }
inline Ints bits_and(Ints a, Ints b) { return _mm256_and_si256(a, b); }
inline Ints words_minus(Ints a, Ints b) { return _mm256_sub_epi16(a, b); }
inline Ints ints_plus(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
inline Ints ints_minus(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
template <int Bits>
inline Ints words_right(Ints x) {
  return _mm256_srli_epi16(x, Bits);
}
template <int Bits>
inline Ints words_left(Ints x) {
  return _mm256_slli_epi16(x, Bits);
}
template <int Bits>
inline Ints signed_words_right(Ints x) {
  return _mm256_srai_epi16(x, Bits);
}
#if defined(TAMIZ_DOT)
/// By `asm`: GCC 12 copies and spills the sums of its own intrinsic.
inline Ints dot_pairs(Ints sum, Ints a, Ints b) {
  asm("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
  return sum;
}
inline Ints dot_quads(Ints sum, Ints a, Ints b) {
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
  return sum;
}
inline void store_low_bytes(void* p, Ints x) {
  const Ints fours = _mm256_shuffle_epi8(
      x, _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                          0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
  _mm_storel_epi64(
      static_cast<__m128i*>(p),
      _mm_unpacklo_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1)));
}
#else
inline Ints dot_pairs(Ints sum, Ints a, Ints b) {
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
  asm("" : "+x"(sum));  // GCC would regroup the additions, and spill
  return sum;
}
#endif
inline Vec to_float(Ints x) { return _mm256_cvtepi32_ps(x); }
inline Vec load_halves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

inline Ints float_bits(Vec x) { return _mm256_castps_si256(x); }
inline Vec bits_float(Ints x) { return _mm256_castsi256_ps(x); }
inline Ints to_ints(Vec x) { return _mm256_cvtps_epi32(x); }
inline Ints ints_max(Ints a, Ints b) { return _mm256_max_epi32(a, b); }
inline int largest_int(Ints x) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}
inline int sum_ints(Ints x) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
/// Of the first 4 lanes and of the last 4.
inline void sum_each_half(Ints x, int32_t* to) {
  x = _mm256_add_epi32(x, _mm256_shuffle_epi32(x, 0x4e));
  x = _mm256_add_epi32(x, _mm256_shuffle_epi32(x, 0xb1));
  to[0] = _mm_cvtsi128_si32(_mm256_castsi256_si128(x));
  to[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(x, 1));
}
inline Ints pack_words(Ints a, Ints b) {
  const Ints packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  return _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(packed, 0xd8), 0xd8);
}
inline Vec keep_lanes(Vec x, uint32_t bits) {
  const Ints lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const Ints kept = _mm256_cmpeq_epi32(bits_and(all_ints(static_cast<int>(bits)), lane), lane);
  return _mm256_and_ps(_mm256_castsi256_ps(kept), x);
}

inline Ints ints_times(Ints a, Ints b) { return _mm256_mullo_epi32(a, b); }
inline Ints words_plus(Ints a, Ints b) { return _mm256_add_epi16(a, b); }
inline Ints bytes_minus(Ints a, Ints b) { return _mm256_sub_epi8(a, b); }
inline Ints bits_or(Ints a, Ints b) { return _mm256_or_si256(a, b); }
inline Ints bits_xor(Ints a, Ints b) { return _mm256_xor_si256(a, b); }
template <int Bits>
inline Ints ints_right(Ints x) {
  return _mm256_srli_epi32(x, Bits);
}
template <int Bits>
inline Ints ints_left(Ints x) {
  return _mm256_slli_epi32(x, Bits);
}
inline Ints look_up(const uint8_t* table, Ints x) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), x);
}
inline Ints gather_ints(const uint32_t* table, Ints x) {
  return _mm256_i32gather_epi32(reinterpret_cast<const int*>(table), x, 4);
}
inline Ints negate_bytes(Ints x, Ints flags, int bit) {
  const Ints one = _mm256_set1_epi8(static_cast<char>(1 << bit));
  const Ints wanted = _mm256_cmpeq_epi8(_mm256_and_si256(flags, one), one);
  return _mm256_sub_epi8(_mm256_xor_si256(x, wanted), wanted);
}
inline Ints dot_bytes(Ints a, Ints b) { return _mm256_maddubs_epi16(a, b); }
inline Ints low_words_twice(Ints x) {
  const __m128i order = _mm_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13);
  return _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(order));
}
inline Ints wide_words(const uint8_t* p) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Ints wide_bytes(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline Vec halves_to_float(Ints x) {
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  return _mm256_cvtph_ps(words);
}

inline Ints low_bytes(Ints a, Ints b) { return _mm256_unpacklo_epi8(a, b); }
inline Ints high_bytes(Ints a, Ints b) { return _mm256_unpackhi_epi8(a, b); }
inline Ints low_words(Ints a, Ints b) { return _mm256_unpacklo_epi16(a, b); }
inline Ints high_words(Ints a, Ints b) { return _mm256_unpackhi_epi16(a, b); }
inline Ints low_ints(Ints a, Ints b) { return _mm256_unpacklo_epi32(a, b); }
inline Ints high_ints(Ints a, Ints b) { return _mm256_unpackhi_epi32(a, b); }
inline Ints low_longs(Ints a, Ints b) { return _mm256_unpacklo_epi64(a, b); }
inline Ints high_longs(Ints a, Ints b) { return _mm256_unpackhi_epi64(a, b); }
/// Every fourth integer side by side.
inline Ints gather_fourths(Ints x) {
  const Ints order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
  return _mm256_permutevar8x32_epi32(x, order);
}
/// Columns from `quads`, whose vector 4 r + i has rows 4 r .. 4 r + 3 of the columns i, 4 + i, ..
inline void join_columns(const Ints (&quads)[kLanes], Ints (&x)[kLanes]) {
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm256_permute2x128_si256(quads[i], quads[4 + i], 0x20);
    x[4 + i] = _mm256_permute2x128_si256(quads[i], quads[4 + i], 0x31);
  }
}

// ---- for few kernels ----

inline uint32_t lanes_above(Vec a, Vec b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)));
}
inline Vec butterfly(Vec x, int half) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i bit = _mm256_set1_epi32(half);
  const Vec other = _mm256_permutevar8x32_ps(x, _mm256_xor_si256(lane, bit));
  const __m256i second = _mm256_cmpeq_epi32(_mm256_and_si256(lane, bit), bit);
  return _mm256_blendv_ps(other + x, other - x, _mm256_castsi256_ps(second));
}
inline Vec every(const float* p, int64_t step) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_i32gather_ps(p, _mm256_mullo_epi32(lane, all_ints(static_cast<int>(step))), 4);
}
inline Ints every_long(const float* p, int step) {
  const __m128i at = _mm_setr_epi32(0, step, 2 * step, 3 * step);
  return _mm256_i32gather_epi64(reinterpret_cast<const long long*>(p), at, 4);
}
inline Ints sum_sides(Ints a, Ints b) {
  return ints_plus(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}
inline Ints all_longs(uint64_t x) { return _mm256_set1_epi64x(static_cast<long long>(x)); }
inline Ints longs_plus(Ints a, Ints b) { return _mm256_add_epi64(a, b); }
inline Ints longs_minus(Ints a, Ints b) { return _mm256_sub_epi64(a, b); }
/// By nibbles (Mula 2008).
inline Ints byte_counts(Ints x) {
  const Ints table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,  //
                                      0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
  const Ints nibble = all_ints(0x0f0f0f0f);
  return _mm256_add_epi8(_mm256_shuffle_epi8(table, bits_and(x, nibble)),
                         _mm256_shuffle_epi8(table, bits_and(words_right<4>(x), nibble)));
}
inline Ints long_counts(Ints x) { return _mm256_sad_epu8(byte_counts(x), all_ints(0)); }
inline Ints count_difference(Ints plus, Ints minus) {
  const Ints bytes = bytes_minus(byte_counts(plus), byte_counts(minus));
  return _mm256_madd_epi16(dot_bytes(all_ints(0x01010101), bytes), all_words(1));
}
inline Vec longs_to_float(Ints low, Ints high) {
  const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  return _mm256_cvtepi32_ps(_mm256_blend_epi32(_mm256_permutevar8x32_epi32(low, even),
                                               _mm256_permutevar8x32_epi32(high, even), 0xf0));
}
inline void store_as_words(int16_t* to, Vec x) {
  const __m256i whole = _mm256_cvttps_epi32(x);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(to),
      _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1)));
}
inline uint32_t nonzero_bytes(const uint8_t* p) {
  return ~static_cast<uint32_t>(
      _mm256_movemask_epi8(_mm256_cmpeq_epi8(load_ints(p), _mm256_setzero_si256())));
}
inline __m256i half_at_least(const uint16_t* p, __m256i least) {
  const __m256i x = load_ints(p);
  return _mm256_cmpeq_epi16(_mm256_max_epu16(x, least), x);
}
inline uint32_t words_at_least(const uint16_t* p, uint16_t least) {
  const __m256i t = _mm256_set1_epi16(static_cast<int16_t>(least));
  const __m256i both = _mm256_packs_epi16(half_at_least(p, t), half_at_least(p + 16, t));
  return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_permute4x64_epi64(both, 0xd8)));
}
#if defined(TAMIZ_DOT)
inline void split_words(const int16_t* p, int8_t* to) {
  const auto rounded = [p](int i) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16 * i));
    return _mm256_add_epi16(words, _mm256_set1_epi16(128));
  };
  const __m256i a = rounded(0), b = rounded(1), low = _mm256_set1_epi16(255);
  const auto sorted = [](__m256i bytes) {
    const __m256i order = _mm256_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15,  //
                                           0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    return _mm256_shuffle_epi8(_mm256_permute4x64_epi64(bytes, 0xd8), order);
  };
  const __m256i high = _mm256_packs_epi16(_mm256_srai_epi16(a, 8), _mm256_srai_epi16(b, 8));
  const __m256i rest = _mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low));
  auto* const at = reinterpret_cast<__m256i*>(to);
  _mm256_storeu_si256(at, sorted(high));
  _mm256_storeu_si256(at + 1, _mm256_xor_si256(sorted(rest), _mm256_set1_epi8(-128)));
}
#endif

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
