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
#include "simd/simd.h"

namespace tamiz {
namespace TAMIZ_TARGET {

inline float row_scale(const float* row, int64_t dim) { return row[dim / 4]; }

/// max |x|, as the bits of the float: what is not finite is larger than what is.
inline int32_t largest_bits(const float* x, int64_t dim) {
  int32_t largest = 0;
  for (int64_t d = 0; d < dim; ++d) {
    int32_t bits;
    memcpy(&bits, x + d, sizeof bits);
    bits &= INT32_MAX;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

/// max |x| / steps; 0 where that would be no normal float, NaN where x is not finite.
inline float rounding_unit(const float* x, int64_t dim, float steps) {
  const int32_t bits = largest_bits(x, dim);
  float largest;
  memcpy(&largest, &bits, sizeof bits);
  if (!(largest <= FLT_MAX)) return NAN;
  const float scale = largest / steps;
  return scale >= FLT_MIN ? scale : 0.0f;
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
