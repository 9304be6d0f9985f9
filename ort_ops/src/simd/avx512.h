// AVX-512: F, BW, VL and DQ; with TAMIZ_DOT VNNI, with TAMIZ_VBMI VBMI, VBMI2 and VPOPCNTDQ.
// simd/simd.h and simd/simd_int.h say what the functions do.
#pragma once

#include <stdint.h>
#include <string.h>

#include "simd/target.h"
// GCC 12 warns about its own _mm512_undefined_ps (bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wunknown-warning-option"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

namespace tamiz {
namespace TAMIZ_TARGET {

using Vec = __m512;
constexpr int kLanes = 16;

inline Vec broadcast(float x) { return _mm512_set1_ps(x); }
inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
inline __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
inline Vec load_partial(const float* p, int64_t n) {
  return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
inline void store_partial(float* p, Vec x, int64_t n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), x);
}
inline Vec bytes_to_float(const int8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec abs(Vec x) { return _mm512_abs_ps(x); }
inline Vec round(Vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT); }
inline Vec floor(Vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF); }
inline float sum(Vec x) { return _mm512_reduce_add_ps(x); }
inline float largest(Vec x) { return _mm512_reduce_max_ps(x); }
inline Vec select_le(Vec a, Vec b, Vec yes, Vec no) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LE_OQ), no, yes);
}
inline Vec times_power_of_two(Vec x, Vec n) { return _mm512_scalef_ps(x, n); }
inline Vec pick_of_eight(const float* table, __m512i x) {
  return _mm512_permutexvar_ps(x, _mm512_broadcast_f32x8(_mm256_loadu_ps(table)));
}

inline Vec sum_pairs(Vec a, Vec b) { return _mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b); }
constexpr int kQuad = 4;
inline Vec sum_quad(const Vec (&x)[kQuad]) {
  const __m512d ab = _mm512_castps_pd(sum_pairs(x[0], x[1]));
  const __m512d cd = _mm512_castps_pd(sum_pairs(x[2], x[3]));
  return _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)) +
         _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
}
inline Vec sum_halves(Vec a, Vec b) {
  return _mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xdd);
}
constexpr int kLaneOrder[] = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
inline Vec join_quads(const Vec (&x)[kLanes / kQuad]) {
  return sum_halves(sum_halves(x[0], x[1]), sum_halves(x[2], x[3]));
}

using Ints = __m512i;

inline Ints load_ints(const void* p) { return _mm512_loadu_si512(p); }
inline void store_ints(void* p, Ints x) { _mm512_storeu_si512(p, x); }
inline Ints all_words(int x) { return _mm512_set1_epi16(static_cast<short>(x)); }
inline Ints all_ints(int x) { return _mm512_set1_epi32(x); }
inline Ints bits_and(Ints a, Ints b) { return _mm512_and_si512(a, b); }
inline Ints words_minus(Ints a, Ints b) { return _mm512_sub_epi16(a, b); }
inline Ints ints_plus(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline Ints ints_minus(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
template <int Bits>
inline Ints words_right(Ints x) {
  return _mm512_srli_epi16(x, Bits);
}
template <int Bits>
inline Ints words_left(Ints x) {
  return _mm512_slli_epi16(x, Bits);
}
template <int Bits>
inline Ints signed_words_right(Ints x) {
  return _mm512_srai_epi16(x, Bits);
}
#if defined(TAMIZ_DOT)
/// By `asm`: GCC 12 copies and spills the sums of its own intrinsic.
inline Ints dot_pairs(Ints sum, Ints a, Ints b) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}
inline Ints dot_quads(Ints sum, Ints a, Ints b) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}
#else
inline Ints dot_pairs(Ints sum, Ints a, Ints b) {
  sum = _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
  asm("" : "+v"(sum));  // GCC would regroup the additions, and spill
  return sum;
}
#endif
inline void store_low_bytes(void* p, Ints x) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
}
inline Vec to_float(Ints x) { return _mm512_cvtepi32_ps(x); }
inline Vec load_halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

inline Ints float_bits(Vec x) { return _mm512_castps_si512(x); }
inline Vec bits_float(Ints x) { return _mm512_castsi512_ps(x); }
inline Ints to_ints(Vec x) { return _mm512_cvtps_epi32(x); }
inline Ints ints_max(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
inline int largest_int(Ints x) { return _mm512_reduce_max_epi32(x); }
inline int sum_ints(Ints x) { return _mm512_reduce_add_epi32(x); }
/// Of the first 8 lanes and of the last 8.
inline void sum_each_half(Ints x, int32_t* to) {
  x = _mm512_add_epi32(x, _mm512_shuffle_i32x4(x, x, 0xb1));
  x = _mm512_add_epi32(x, _mm512_shuffle_epi32(x, _MM_PERM_BADC));
  x = _mm512_add_epi32(x, _mm512_shuffle_epi32(x, _MM_PERM_CDAB));
  to[0] = _mm_cvtsi128_si32(_mm512_castsi512_si128(x));
  to[1] = _mm_cvtsi128_si32(_mm512_extracti32x4_epi32(x, 2));
}
/// a, b as words, of every four in the order 0, 2, 1, 3.
inline Ints pack_words(Ints a, Ints b) {
  const Ints packed =
      _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_packs_epi32(a, b));
  return _mm512_shufflehi_epi16(_mm512_shufflelo_epi16(packed, 0xd8), 0xd8);
}
inline Vec keep_lanes(Vec x, uint32_t bits) {
  return _mm512_maskz_mov_ps(static_cast<__mmask16>(bits), x);
}

inline Ints ints_times(Ints a, Ints b) { return _mm512_mullo_epi32(a, b); }
inline Ints words_plus(Ints a, Ints b) { return _mm512_add_epi16(a, b); }
inline Ints bytes_minus(Ints a, Ints b) { return _mm512_sub_epi8(a, b); }
inline Ints bits_or(Ints a, Ints b) { return _mm512_or_si512(a, b); }
inline Ints bits_xor(Ints a, Ints b) { return _mm512_xor_si512(a, b); }
template <int Bits>
inline Ints ints_right(Ints x) {
  return _mm512_srli_epi32(x, Bits);
}
template <int Bits>
inline Ints ints_left(Ints x) {
  return _mm512_slli_epi32(x, Bits);
}
/// The byte of `table` that every byte of x, 0 .. 15, numbers.
inline Ints look_up(const uint8_t* table, Ints x) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), x);
}
/// The integers of `table` that x numbers.
inline Ints gather_ints(const uint32_t* table, Ints x) {
  return _mm512_i32gather_epi32(x, table, 4);
}
/// The bytes of x, negated where bit `bit` of a byte of `flags` is set.
inline Ints negate_bytes(Ints x, Ints flags, int bit) {
  const __mmask64 wanted =
      _mm512_test_epi8_mask(flags, _mm512_set1_epi8(static_cast<char>(1 << bit)));
  return _mm512_mask_sub_epi8(x, wanted, _mm512_setzero_si512(), x);
}
/// Unsigned bytes of a times signed bytes of b, added in pairs.
inline Ints dot_bytes(Ints a, Ints b) { return _mm512_maddubs_epi16(a, b); }
/// The low word of every integer, twice.
inline Ints low_words_twice(Ints x) {
  const __m128i order = _mm_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13);
  return _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(order));
}
inline Ints wide_words(const uint8_t* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Ints wide_bytes(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
/// Of integers whose low words are fp16.
inline Vec halves_to_float(Ints x) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)); }

inline Ints low_bytes(Ints a, Ints b) { return _mm512_unpacklo_epi8(a, b); }
inline Ints high_bytes(Ints a, Ints b) { return _mm512_unpackhi_epi8(a, b); }
inline Ints low_words(Ints a, Ints b) { return _mm512_unpacklo_epi16(a, b); }
inline Ints high_words(Ints a, Ints b) { return _mm512_unpackhi_epi16(a, b); }
inline Ints low_ints(Ints a, Ints b) { return _mm512_unpacklo_epi32(a, b); }
inline Ints high_ints(Ints a, Ints b) { return _mm512_unpackhi_epi32(a, b); }
inline Ints low_longs(Ints a, Ints b) { return _mm512_unpacklo_epi64(a, b); }
inline Ints high_longs(Ints a, Ints b) { return _mm512_unpackhi_epi64(a, b); }
/// Every fourth integer side by side.
inline Ints gather_fourths(Ints x) {
  const Ints order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, x);
}
/// Columns from `quads`, whose vector 4 r + i has rows 4 r .. 4 r + 3 of the columns i, 4 + i, ..
inline void join_columns(const Ints (&quads)[kLanes], Ints (&x)[kLanes]) {
  for (int i = 0; i < 4; ++i) {  // part p of quads[4 r + i] is of column 4 p + i and rows 4 r ..
    const Ints even = _mm512_shuffle_i32x4(quads[i], quads[4 + i], 0x88);
    const Ints odd = _mm512_shuffle_i32x4(quads[i], quads[4 + i], 0xdd);
    const Ints last_even = _mm512_shuffle_i32x4(quads[8 + i], quads[12 + i], 0x88);
    const Ints last_odd = _mm512_shuffle_i32x4(quads[8 + i], quads[12 + i], 0xdd);
    x[i] = _mm512_shuffle_i32x4(even, last_even, 0x88);
    x[4 + i] = _mm512_shuffle_i32x4(odd, last_odd, 0x88);
    x[8 + i] = _mm512_shuffle_i32x4(even, last_even, 0xdd);
    x[12 + i] = _mm512_shuffle_i32x4(odd, last_odd, 0xdd);
  }
}

// ---- for few kernels ----

inline uint32_t lanes_above(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
inline Vec butterfly(Vec x, int half) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i bit = _mm512_set1_epi32(half);
  const Vec other = _mm512_permutexvar_ps(_mm512_xor_si512(lane, bit), x);
  return _mm512_mask_sub_ps(other + x, _mm512_test_epi32_mask(lane, bit), other, x);
}
inline Vec every(const float* p, int64_t step) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_i32gather_ps(_mm512_mullo_epi32(lane, all_ints(static_cast<int>(step))), p, 4);
}
inline Ints every_long(const float* p, int step) {
  const __m256i at =
      _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(step));
  return _mm512_i32gather_epi64(at, p, 4);
}
inline Ints sum_sides(Ints a, Ints b) {
  return ints_plus(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}
inline Ints all_longs(uint64_t x) { return _mm512_set1_epi64(static_cast<long long>(x)); }
inline Ints longs_plus(Ints a, Ints b) { return _mm512_add_epi64(a, b); }
inline Ints longs_minus(Ints a, Ints b) { return _mm512_sub_epi64(a, b); }
#if defined(TAMIZ_VBMI)
inline Ints long_counts(Ints x) { return _mm512_popcnt_epi64(x); }
inline Ints count_difference(Ints plus, Ints minus) {
  return _mm512_sub_epi32(_mm512_popcnt_epi32(plus), _mm512_popcnt_epi32(minus));
}
#else
inline Ints byte_counts(Ints x) {
  alignas(16) static constexpr uint8_t kCounts[16] = {0, 1, 1, 2, 1, 2, 2, 3,
                                                      1, 2, 2, 3, 2, 3, 3, 4};
  const Ints nibble = all_ints(0x0f0f0f0f);
  return _mm512_add_epi8(look_up(kCounts, bits_and(x, nibble)),
                         look_up(kCounts, bits_and(words_right<4>(x), nibble)));
}
inline Ints long_counts(Ints x) { return _mm512_sad_epu8(byte_counts(x), all_ints(0)); }
inline Ints count_difference(Ints plus, Ints minus) {
  const Ints bytes = bytes_minus(byte_counts(plus), byte_counts(minus));
  return _mm512_madd_epi16(dot_bytes(all_ints(0x01010101), bytes), all_words(1));
}
#endif
inline Vec longs_to_float(Ints low, Ints high) {
  const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi64_epi32(low)),
                                          _mm512_cvtepi64_epi32(high), 1);
  return _mm512_cvtepi32_ps(both);
}
inline void store_as_words(int16_t* to, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtsepi32_epi16(_mm512_cvttps_epi32(x)));
}
inline uint32_t nonzero_bytes(const uint8_t* p) {
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return ~static_cast<uint32_t>(
      _mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_setzero_si256())));
}
inline uint32_t words_at_least(const uint16_t* p, uint16_t least) {
  return _mm512_cmpge_epu16_mask(_mm512_loadu_si512(p),
                                 _mm512_set1_epi16(static_cast<int16_t>(least)));
}
#if defined(TAMIZ_DOT) && !defined(TAMIZ_VBMI)
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
