// Vectors of floats: 16 lanes on AVX-512, 8 on AVX2 and in two halves, 1 where all is scalar. A
// kernel written with them is written once for every level. `+ - * /` are the compiler's own.
#pragma once

#include <math.h>
#include <stdint.h>

#include "simd/target.h"
#if defined(TAMIZ_AVX512)
#include "simd/avx512.h"
#elif defined(TAMIZ_AVX2)
#include "simd/avx2.h"
#elif defined(TAMIZ_HALVES)
#include "simd/halves.h"
#else
#include "simd/scalar.h"
#endif

namespace tamiz {
namespace TAMIZ_TARGET {

// What each target offers, in words:
//   load_partial(p, n)          the first n < kLanes lanes, the others 0; store_partial likewise
//   bytes_to_float(p)           of kLanes signed bytes
//   fma(a, b, c)                a b + c, rounded once, also where there is no such instruction, so
//                               that products have the same bits on all levels
//   multiply_add(a, b, c)       a b + c, rounded once or twice
//   min, max                    the second argument where one is NaN
//   pick_of_eight(table, x)     table[x mod 8] for every lane of the integers x
//   sum(x), largest(x)          over the lanes; `sum` adds one half of the lanes to the other, and
//                               so on
//   select_le(a, b, yes, no)    a <= b ? yes : no, lane by lane
//   join_quads(sum_quad(x), ..) lane i = the sum of the i-th of kLanes vectors, kQuad of them in
//   each
//                               x, whose lanes, in the order kLaneOrder, are added in pairs, the
//                               sums in pairs again, and so on

#if defined(TAMIZ_FUSED)
inline Vec multiply_add(Vec a, Vec b, Vec c) { return fma(a, b, c); }
#else
inline Vec multiply_add(Vec a, Vec b, Vec c) { return a * b + c; }
#endif

#if defined(TAMIZ_VECTORS)

/// exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2, exp(r) by a polynomial (Cephes).
/// Relative error under 2e-7; exp(-inf) = 0, overflow gives inf, NaN stays NaN.
inline Vec exp(Vec x) {
  x = max(broadcast(-104.0f), min(broadcast(89.0f), x));
  const Vec n = round(x * broadcast(1.44269504f));
  const Vec r =
      multiply_add(n, broadcast(2.12194440e-4f), multiply_add(n, broadcast(-0.693359375f), x));
  Vec p = broadcast(1.9875691500e-4f);
  p = multiply_add(p, r, broadcast(1.3981999507e-3f));
  p = multiply_add(p, r, broadcast(8.3334519073e-3f));
  p = multiply_add(p, r, broadcast(4.1665795894e-2f));
  p = multiply_add(p, r, broadcast(1.6666665459e-1f));
  p = multiply_add(p, r, broadcast(5.0000001201e-1f));
  p = multiply_add(p * r, r, r + broadcast(1.0f));
  return times_power_of_two(p, n);
}

/// 2^x = 2^n 2^r, n = round(x), |r| <= 1/2, 2^r by the polynomial whose largest relative error is
/// least. Relative error under 2e-7. For |x| <= 250, where nothing has to be cut off; NaN stays
/// NaN.
inline Vec exp2(Vec x) {
  const Vec n = round(x);
  const Vec r = x - n;
  Vec p = broadcast(1.32764678e-3f);
  p = multiply_add(p, r, broadcast(9.67554096e-3f));
  p = multiply_add(p, r, broadcast(5.55071346e-2f));
  p = multiply_add(p, r, broadcast(2.40221202e-1f));
  p = multiply_add(p, r, broadcast(6.93146944e-1f));
  p = multiply_add(p, r, broadcast(1.00000012f));
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
  p = multiply_add(p, z, broadcast(2.06390887954e-2f));
  p = multiply_add(p, z, broadcast(-5.37397155531e-2f));
  p = multiply_add(p, z, broadcast(1.33314422036e-1f));
  p = multiply_add(p, z, broadcast(-3.33332819422e-1f));
  const Vec near = multiply_add(p * z, x, x);
  const Vec far = one - broadcast(2.0f) / (exp(size + size) + one);
  return select_le(size, broadcast(0.625f), near, select_le(x, zero, zero - far, far));
}

#if defined(TAMIZ_FUSED)

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

/// Lane by lane: x - n pi/2 would lose its digits where products are rounded.
inline void sincos(Vec x, Vec& sine, Vec& cosine) {
  float lanes[kLanes], sines[kLanes], cosines[kLanes];
  store(lanes, x);
  for (int i = 0; i < kLanes; ++i) {
    sines[i] = ::sinf(lanes[i]);
    cosines[i] = ::cosf(lanes[i]);
  }
  sine = load(sines);
  cosine = load(cosines);
}

#endif

#else

inline Vec exp(Vec x) { return ::expf(x); }
inline Vec exp2(Vec x) { return ::exp2f(x); }
inline Vec tanh(Vec x) { return ::tanhf(x); }
inline void sincos(Vec x, Vec& sine, Vec& cosine) {
  sine = ::sinf(x);
  cosine = ::cosf(x);
}

#endif

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
