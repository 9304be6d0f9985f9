// The product as its equation reads, for any CPU: see kernels/products/matmul.h.
#pragma once

#include <math.h>
#include <stdint.h>

#include "kernels/products/matmul.h"
#include "simd/target.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// Where input i lies among the quants of its group: of every four in the order 0, 2, 1, 3.
inline int64_t place(int64_t i) {
  constexpr int kOrder[] = {0, 2, 1, 3};
  return i / 4 * 4 + kOrder[i % 4];
}

/// The sum over one group of a row; `quant` gives the weight's quant of an input.
template <class Quant>
inline int32_t dot_group(const QuantRows& x, int64_t at, Quant quant) {
  int32_t sum = 0;
  for (int64_t i = 0; i < kGroup; ++i) sum += x.quants[at * kGroup + place(i)] * quant(i);
  return sum;
}

inline void quantize(const float* x, int64_t k, const uint8_t* mask, int64_t block,
                     const QuantRows& to, int64_t row) {
  for (int64_t g = 0; g < to.groups; ++g) {
    const int64_t at = to.at(row, g);
    float value[kGroup];
    uint8_t kept = 0;
    float largest = 0.0f;
    bool finite = true;
    for (int64_t i = 0; i < kGroup; ++i) {
      const int64_t input = g * kGroup + i;
      const bool keep = input < k && (!mask || mask[input / block]);
      value[i] = keep ? x[input] : 0.0f;
      kept |= static_cast<uint8_t>(keep << i / 4);
      finite = finite && isfinite(value[i]);
      largest = fmaxf(largest, fabsf(value[i]));
    }
    const bool zero = largest < 0x1p-110f || !finite;
    const float scale = zero ? 0.0f : largest / 32512.0f;
    const float inverse = zero ? 0.0f : 32512.0f / largest;
    int32_t sum = 0;
    for (int64_t i = 0; i < kGroup; ++i) {
      const int16_t quant = finite ? static_cast<int16_t>(rintf(value[i] * inverse)) : 0;
      to.quants[at * kGroup + place(i)] = quant;
      sum += quant;
    }
    to.scales[at] = finite ? scale : NAN;
    to.sums[at] = to.scales[at] * static_cast<float>(sum);
    if (mask) to.kept[at] = kept;
  }
}

inline void multiply(const MultiplyArgs& a) {
  const int64_t group_size = group_bytes(a.bits, a.scale_bits);
  const int64_t tile_size = tile_bytes(a.x.groups, a.bits, a.scale_bits);
  const bool units = a.scale_bits == 8;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t output = 0; output < a.outputs; ++output) {
      const uint8_t* const tile = a.weight + output / kTile * tile_size;
      const int64_t o = output % kTile;
      const float bias = a.bias ? a.bias[output] : 0.0f;
      float y = units ? 0.0f : bias;
      for (int64_t g = 0; g < a.x.groups; ++g) {
        const uint8_t* const group = tile + g * group_size;
        const int64_t at = a.x.at(a.first_row + r, g);
        if (a.skip && a.x.kept[at] == 0) continue;
        const int32_t sum =
            dot_group(a.x, at, [&](int64_t i) { return weight_quant(group, a.bits, o, i); });
        const float scale = weight_scale(group, a.bits, o, a.scale_bits);
        y = fmaf(static_cast<float>(sum) * a.x.scales[at], scale, y);
        const float minimum = weight_minimum(group, a.bits, o, a.scale_bits);
        if (a.bits == 4) y = fmaf(a.x.sums[at], minimum, y);
      }
      if (units) y = fmaf(y, weight_unit(tile, a.x.groups, o, a.scale_bits), bias);
      a.y[r * a.y_stride + output] = y;
    }
  }
}

constexpr MatMulKernels matmul_kernels = {quantize, multiply};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
