// Vectors of floats: 16 lanes on AVX-512, 8 on AVX2, 1 on the portable target. A kernel written
// with them is written once for every target. `+ - * /` are the compiler's own.
#pragma once

#include <math.h>
#include <stdint.h>

#include "simd/target.h"
#if defined(TAMIZ_AVX512) || defined(TAMIZ_AVX2)
// GCC 12 warns about its own _mm512_undefined_ps (bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace tamiz {
namespace TAMIZ_TARGET {

#if defined(TAMIZ_AVX512)

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

#elif defined(TAMIZ_AVX2)

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

constexpr int kQuad = 4;
inline Vec sum_quad(const Vec (&x)[kQuad]) {
  return _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
}
constexpr int kLaneOrder[] = {0, 1, 2, 3, 4, 5, 6, 7};
inline Vec join_quads(const Vec (&x)[kLanes / kQuad]) {
  return _mm256_permute2f128_ps(x[0], x[1], 0x20) + _mm256_permute2f128_ps(x[0], x[1], 0x31);
}

#else

using Vec = float;
constexpr int kLanes = 1;

inline Vec broadcast(float x) { return x; }
inline Vec load(const float* p) { return *p; }
inline void store(float* p, Vec x) { *p = x; }
inline Vec load_partial(const float*, int64_t) { return 0.0f; }
inline void store_partial(float*, Vec, int64_t) {}
inline Vec bytes_to_float(const int8_t* p) { return *p; }
inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
inline Vec max(Vec a, Vec b) { return a > b ? a : b; }
inline Vec min(Vec a, Vec b) { return a < b ? a : b; }
inline Vec round(Vec x) { return ::nearbyintf(x); }
inline float sum(Vec x) { return x; }
inline float largest(Vec x) { return x; }
inline Vec select_le(Vec a, Vec b, Vec yes, Vec no) { return a <= b ? yes : no; }
constexpr int kLaneOrder[] = {0};
constexpr int kQuad = 1;
inline Vec sum_quad(const Vec (&x)[kQuad]) { return x[0]; }
inline Vec join_quads(const Vec (&x)[kLanes / kQuad]) { return x[0]; }

#endif

// What each target offers, in words:
//   load_partial(p, n)          the first n < kLanes lanes, the others 0; store_partial likewise
//   bytes_to_float(p)           of kLanes signed bytes
//   min, max                    the second argument where one is NaN
//   sum(x), largest(x)          over the lanes; `sum` adds one half of the lanes to the other, and
//                               so on
//   select_le(a, b, yes, no)    a <= b ? yes : no, lane by lane
//   join_quads(sum_quad(x), ..) lane i = the sum of the i-th of kLanes vectors, kQuad of them in
//   each
//                               x, whose lanes, in the order kLaneOrder, are added in pairs, the
//                               sums in pairs again, and so on

#if defined(TAMIZ_AVX512) || defined(TAMIZ_AVX2)

/// exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2, exp(r) by a polynomial (Cephes).
/// Relative error under 2e-7; exp(-inf) = 0, overflow gives inf, NaN stays NaN.
inline Vec exp(Vec x) {
  x = max(broadcast(-104.0f), min(broadcast(89.0f), x));
  const Vec n = round(x * broadcast(1.44269504f));
  const Vec r = fma(n, broadcast(2.12194440e-4f), fma(n, broadcast(-0.693359375f), x));
  Vec p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = fma(p * r, r, r + broadcast(1.0f));
  return times_power_of_two(p, n);
}

/// tanh x: Cephes' polynomial of x^2 below 0.625, else 1 - 2 / (exp(2 |x|) + 1) with the sign of x.
/// Relative error under 3e-7; NaN stays NaN.
inline Vec tanh(Vec x) {
  const Vec zero = broadcast(0.0f);
  const Vec one = broadcast(1.0f);
  const Vec size = abs(x);
  const Vec z = x * x;
  Vec p = broadcast(-5.70498872745e-3f);
  p = fma(p, z, broadcast(2.06390887954e-2f));
  p = fma(p, z, broadcast(-5.37397155531e-2f));
  p = fma(p, z, broadcast(1.33314422036e-1f));
  p = fma(p, z, broadcast(-3.33332819422e-1f));
  const Vec near = fma(p * z, x, x);
  const Vec far = one - broadcast(2.0f) / (exp(size + size) + one);
  return select_le(size, broadcast(0.625f), near, select_le(x, zero, zero - far, far));
}

/// sin x and cos x: x = n pi/2 + r, |r| <= pi/4, with pi/2 in three parts (Cody and Waite), then
/// the polynomials of Cephes. Absolute error under 2e-7 for |x| up to 10^6.
inline void sincos(Vec x, Vec& sine, Vec& cosine) {
  const Vec zero = broadcast(0.0f);
  const Vec one = broadcast(1.0f);
  const Vec n = round(x * broadcast(0.636619772f));
  Vec r = fma(n, broadcast(-1.57079637f), x);
  r = fma(n, broadcast(4.37113900e-8f), r);
  r = fma(n, broadcast(1.71512512e-15f), r);
  const Vec z = r * r;
  Vec s = fma(z, broadcast(-1.9515295891e-4f), broadcast(8.3321608736e-3f));
  s = fma(s, z, broadcast(-1.6666654611e-1f));
  s = fma(s * z, r, r);
  Vec c = fma(z, broadcast(2.443315711809948e-5f), broadcast(-1.388731625493765e-3f));
  c = fma(c, z, broadcast(4.166664568298827e-2f));
  c = fma(c * z, z, fma(z, broadcast(-0.5f), one));
  const Vec quadrant = n - broadcast(4.0f) * floor(n * broadcast(0.25f));
  const Vec odd = quadrant - broadcast(2.0f) * floor(quadrant * broadcast(0.5f));
  const Vec sine_size = select_le(one, odd, c, s);
  const Vec cosine_size = select_le(one, odd, s, c);
  sine = select_le(broadcast(2.0f), quadrant, zero - sine_size, sine_size);
  cosine = select_le(abs(quadrant - broadcast(1.5f)), one, zero - cosine_size, cosine_size);
}

#else

inline Vec exp(Vec x) { return ::expf(x); }
inline Vec tanh(Vec x) { return ::tanhf(x); }
inline void sincos(Vec x, Vec& sine, Vec& cosine) {
  sine = ::sinf(x);
  cosine = ::cosf(x);
}

#endif

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
