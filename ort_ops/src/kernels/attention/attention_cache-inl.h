// Rows of the key/value cache. A row of floats is the vector x [dim] itself; a row of bytes is
//
//   q_d = round(x_d / s),  s = max |x| / 127            four q_d in a float's place, and then s
//
// so that s q_d stands for x_d. s and q are 0 where s would be no normal float; where x is not
// finite, q is 0 and s NaN, and so is what attends to the row.
#pragma once

#include <float.h>
#include <string.h>

#include "kernels/attention/attention.h"
#include "simd/simd_int.h"

namespace tamiz {
namespace TAMIZ_TARGET {

inline float row_scale(const float* row, int64_t dim) { return row[dim / 4]; }

inline float first_lane(Vec x) {
  float lanes[kLanes];
  store(lanes, x);
  return lanes[0];
}

/// The i-th vector of n floats, 0 beyond them.
inline Vec some_floats(const float* x, int64_t i, int64_t n) {
  const int64_t rest = n - i * kLanes;
  if (rest >= kLanes) return load(x + i * kLanes);
  return rest > 0 ? load_partial(x + i * kLanes, rest) : broadcast(0.0f);
}

/// |x| as the bits of the float: what is not finite is larger than what is.
inline Ints size_bits(Vec x) { return bits_and(float_bits(x), all_ints(INT32_MAX)); }

/// |x| / steps, lane by lane, of the bits of |x|; 0 where that would be no normal float, NaN where
/// x is not finite.
inline Vec rounding_units(Ints bits, float steps) {
  const Vec largest = bits_float(bits);
  const Vec unit = largest / broadcast(steps);
  const Vec normal = select_le(broadcast(FLT_MIN), unit, unit, broadcast(0.0f));
  return select_le(largest, broadcast(FLT_MAX), normal, broadcast(NAN));
}

/// max |x| / steps, as `rounding_units` has it.
inline float rounding_unit(const float* x, int64_t dim, float steps) {
  Ints largest = all_ints(0);
  for (int64_t i = 0; i * kLanes < dim; ++i) {
    largest = ints_max(largest, size_bits(some_floats(x, i, dim)));
  }
  return first_lane(rounding_units(all_ints(largest_int(largest)), steps));
}

/// q = round(x / scale), 0 where there is no scale.
inline void round_bytes(const float* x, int64_t dim, float scale, int8_t* q) {
  memset(q, 0, dim);
  if (!(scale > 0.0f)) return;
  for (int64_t d = 0; d < dim; d += kLanes) {
    const int64_t n = dim - d < kLanes ? dim - d : kLanes;
    float rounded[kLanes];
    const Vec part = n < kLanes ? load_partial(x + d, n) : load(x + d);
    store(rounded, round(part / broadcast(scale)));
    for (int64_t i = 0; i < n; ++i) q[d + i] = static_cast<int8_t>(rounded[i]);
  }
}

inline void store_bytes(const float* x, int64_t dim, float* row) {
  row[dim / 4] = rounding_unit(x, dim, 127.0f);
  round_bytes(x, dim, row[dim / 4], reinterpret_cast<int8_t*>(row));
}

inline void store_row(const float* x, int64_t dim, bool bytes, float* row) {
  if (bytes) return store_bytes(x, dim, row);
  memcpy(row, x, sizeof(float) * dim);
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
