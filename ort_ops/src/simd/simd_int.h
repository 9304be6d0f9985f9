// Vectors of 32-bit integers and pairs of 16-bit ones, as wide as the vectors of simd/simd.h. The
// portable target has those that attention needs.
//
//   transpose(x)              lane j of x[i] becomes lane i of x[j]
//   interleave_bytes(x)       of four rows of 4 kLanes bytes, those of kLanes places side by side:
//                             byte r of lane l of x[i] becomes byte i kLanes + l of row r
//   dot_quads(sum, a, b)      adds unsigned bytes of a times signed bytes of b, in fours
//   store_low_bytes(p, x)     stores the low byte of every lane
//   pair_words(x, to)         stores 4 kLanes integers as words, of every four in the order
//                             0, 2, 1, 3
//
// AVX2 has pair_words and no dot_quads and store_low_bytes, the others have these only: AVX2 has no
// product of unsigned and signed bytes that fits all.
#pragma once

#include <string.h>

#include "simd/simd.h"

namespace tamiz {
namespace TAMIZ_TARGET {

#if defined(TAMIZ_AVX512)

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
/// By `asm`: GCC 12 copies and spills the sums of its own intrinsic.
inline Ints dot_pairs(Ints sum, Ints a, Ints b) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}
inline Ints dot_quads(Ints sum, Ints a, Ints b) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}
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

#elif defined(TAMIZ_AVX2)

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
inline Ints dot_pairs(Ints sum, Ints a, Ints b) {
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
  asm("" : "+x"(sum));  // GCC would regroup the additions, and spill
  return sum;
}
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
inline void pair_words(const Ints (&x)[4], int32_t* to) {
  store_ints(to, pack_words(x[0], x[1]));
  store_ints(to + kLanes, pack_words(x[2], x[3]));
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

#else

using Ints = int32_t;

inline Ints load_ints(const void* p) {
  Ints x;
  memcpy(&x, p, sizeof x);
  return x;
}
inline void store_ints(void* p, Ints x) { memcpy(p, &x, sizeof x); }
inline Ints all_ints(int x) { return x; }
inline Ints bits_and(Ints a, Ints b) { return a & b; }
inline Ints bits_or(Ints a, Ints b) { return a | b; }
inline Ints ints_max(Ints a, Ints b) { return a > b ? a : b; }
inline Vec to_float(Ints x) { return static_cast<float>(x); }
inline Ints to_ints(Vec x) { return static_cast<Ints>(::nearbyintf(x)); }
inline Ints float_bits(Vec x) { return load_ints(&x); }
inline Vec bits_float(Ints x) {
  Vec y;
  memcpy(&y, &x, sizeof y);
  return y;
}
template <int Bits>
inline Ints ints_left(Ints x) {
  return static_cast<Ints>(static_cast<uint32_t>(x) << Bits);
}
template <int Bits>
inline Ints ints_right(Ints x) {
  return static_cast<Ints>(static_cast<uint32_t>(x) >> Bits);
}
inline Ints ints_plus(Ints a, Ints b) {
  return static_cast<Ints>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
inline Ints ints_minus(Ints a, Ints b) {
  return static_cast<Ints>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b));
}
inline Ints dot_quads(Ints sum, Ints a, Ints b) {
  uint8_t x[4];
  int8_t y[4];
  memcpy(x, &a, 4);
  memcpy(y, &b, 4);
  for (int i = 0; i < 4; ++i) sum += x[i] * y[i];
  return sum;
}
inline void store_low_bytes(void* p, Ints x) {
  *static_cast<uint8_t*>(p) = static_cast<uint8_t>(x);
}
inline int largest_int(Ints x) { return x; }
inline void transpose(Ints (&)[kLanes]) {}
inline void interleave_bytes(Ints (&x)[4]) {
  uint8_t rows[4][4], columns[4][4];
  memcpy(rows, x, sizeof rows);
  for (int i = 0; i < 4; ++i) {
    for (int r = 0; r < 4; ++r) columns[i][r] = rows[r][i];
  }
  memcpy(x, columns, sizeof columns);
}

#endif

#if defined(TAMIZ_AVX512) || defined(TAMIZ_AVX2)

inline void transpose(Ints (&x)[kLanes]) {
  Ints pairs[kLanes], quads[kLanes];
  for (int i = 0; i < kLanes; i += 2) {
    pairs[i] = low_ints(x[i], x[i + 1]);
    pairs[i + 1] = high_ints(x[i], x[i + 1]);
  }
  for (int i = 0; i < kLanes; i += 4) {
    quads[i] = low_longs(pairs[i], pairs[i + 2]);
    quads[i + 1] = high_longs(pairs[i], pairs[i + 2]);
    quads[i + 2] = low_longs(pairs[i + 1], pairs[i + 3]);
    quads[i + 3] = high_longs(pairs[i + 1], pairs[i + 3]);
  }
  join_columns(quads, x);
}
inline void interleave_bytes(Ints (&x)[4]) {
  for (Ints& row : x) row = gather_fourths(row);
  const Ints low = low_bytes(x[0], x[1]), high = high_bytes(x[0], x[1]);
  const Ints last_low = low_bytes(x[2], x[3]), last_high = high_bytes(x[2], x[3]);
  x[0] = low_words(low, last_low);
  x[1] = high_words(low, last_low);
  x[2] = low_words(high, last_high);
  x[3] = high_words(high, last_high);
}

#endif

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
