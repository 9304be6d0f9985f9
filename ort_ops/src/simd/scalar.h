// One lane, in plain C++. simd/simd.h and simd/simd_int.h say what the functions do.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "simd/target.h"

namespace tamiz {
namespace TAMIZ_TARGET {

using Vec = float;
constexpr int kLanes = 1;

inline Vec broadcast(float x) { return x; }
inline Vec load(const float* p) { return *p; }
inline void store(float* p, Vec x) { *p = x; }
inline Vec load_partial(const float*, int64_t) { return 0.0f; }
inline void store_partial(float*, Vec, int64_t) {}
inline Vec bytes_to_float(const int8_t* p) { return *p; }
inline Vec fma(Vec a, Vec b, Vec c) { return ::fmaf(a, b, c); }
inline Vec abs(Vec x) { return ::fabsf(x); }
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
inline Vec pick_of_eight(const float* table, Ints x) { return table[x & 7]; }
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

// ---- for few kernels ----

inline uint32_t lanes_above(Vec a, Vec b) { return a > b; }
inline Vec butterfly(Vec x, int) { return x; }  // has no lanes
inline Vec every(const float* p, int64_t) { return *p; }
inline Vec keep_lanes(Vec x, uint32_t bits) { return bits & 1 ? x : 0.0f; }

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
