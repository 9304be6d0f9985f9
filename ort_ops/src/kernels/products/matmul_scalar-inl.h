// The product as its equation reads, for any CPU: see kernels/products/matmul.h.
#pragma once

#include <math.h>
#include <stdint.h>

#include "kernels/products/matmul.h"
#include "simd/target.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// The sum over one group of a row; `quant` gives the weight's quant of an input.
template <class Quant>
inline int32_t dot_group(const QuantRows& x, int64_t at, Quant quant) {
  int32_t sum = 0;
  for (int64_t i = 0; i < kGroup; ++i) sum += x.quants[at * kGroup + place(i)] * quant(i);
  return sum;
}

/// The inputs of group `g`, those that a mask leaves out as 0; and one bit for every four kept.
struct GroupInputs {
  float value[kGroup];
  uint8_t kept = 0;

  GroupInputs(const float* x, int64_t k, const uint8_t* mask, int64_t block, int64_t g) {
    for (int64_t i = 0; i < kGroup; ++i) {
      const int64_t input = g * kGroup + i;
      const bool keep = input < k && (!mask || mask[input / block]);
      value[i] = keep ? x[input] : 0.0f;
      kept |= static_cast<uint8_t>(keep << i / 4);
    }
  }

  /// Quantises them into the group of number `at`.
  template <int Largest>
  void quantize(const QuantRows& to, int64_t at) const {
    float largest = 0.0f;
    bool finite = true;
    for (const float one : value) {
      finite = finite && isfinite(one);
      largest = fmaxf(largest, fabsf(one));
    }
    const bool zero = largest < 0x1p-110f || !finite;
    const float scale = zero ? 0.0f : largest / static_cast<float>(Largest);
    const float inverse = zero ? 0.0f : static_cast<float>(Largest) / largest;
    int32_t* const half_sums = to.half_sums + 2 * at;
    half_sums[0] = half_sums[1] = 0;
    for (int64_t i = 0; i < kGroup; ++i) {
      const int16_t quant = finite ? static_cast<int16_t>(rintf(value[i] * inverse)) : 0;
      to.quants[at * kGroup + place(i)] = quant;
      half_sums[i / (kGroup / 2)] += quant;
    }
    to.scales[at] = finite ? scale : NAN;
    to.sums[at] = to.scales[at] * static_cast<float>(half_sums[0] + half_sums[1]);
    to.kept[at] = kept;
  }

  /// Leaves what the quants of number `at` leave.
  void subtract(const QuantRows& quants, int64_t at) {
    for (int64_t i = 0; i < kGroup; ++i) {
      const auto quant = static_cast<float>(quants.quants[at * kGroup + place(i)]);
      value[i] = fmaf(-quants.scales[at], quant, value[i]);
    }
  }
};

template <int Largest>
inline void quantize_to(const float* x, int64_t k, const uint8_t* mask, int64_t block,
                        const QuantRows& to, int64_t row) {
  for (int64_t g = 0; g < to.groups; ++g) {
    GroupInputs(x, k, mask, block, g).quantize<Largest>(to, to.at(row, g));
  }
}

inline void quantize(const float* x, int64_t k, const uint8_t* mask, int64_t block,
                     const QuantRows& to, int64_t row) {
  quantize_to<kLargestWord>(x, k, mask, block, to, row);
}

inline void quantize_bytes(const float* x, int64_t k, const uint8_t* mask, int64_t block,
                           const QuantRows& to, int64_t row) {
  quantize_to<kLargestByte>(x, k, mask, block, to, row);
}

inline void quantize_twice(const float* x, int64_t k, const uint8_t* mask, int64_t block,
                           const QuantRows& to, int64_t row) {
  for (int64_t g = 0; g < to.groups; ++g) {
    const int64_t at = to.at(2 * row, g);
    GroupInputs inputs(x, k, mask, block, g);
    inputs.quantize<kLargestWord>(to, at);
    inputs.subtract(to, at);
    inputs.quantize<kLargestWord>(to, at + 1);
  }
}

/// y + the products of one output of a tile with one row, whose group g is number `at(g)`.
template <class At>
inline float add_format(const MultiplyArgs& a, const uint8_t* tile, int64_t o, At at, float y) {
  const FormatSpec& f = spec_of(a.format);
  for (int64_t g = 0; g < a.x.groups; ++g) {
    const int64_t group = at(g);
    const int16_t* const x = a.x.quants + group * kGroup;
    if (a.skip && a.x.kept[group] == 0) continue;
    if (f.number()) {
      float sum = 0.0f;
      for (int64_t i = 0; i < kGroup; ++i) {
        const float w = format_number(a.format, tile, g * kGroup + i, o);
        sum = fmaf(w, static_cast<float>(x[place(i)]), sum);
      }
      y = fmaf(sum, a.x.scales[group], y);
      continue;
    }
    const uint8_t* const planes = tile + f.planes_of(g);
    for (int64_t part = 0; part < f.parts(); ++part) {
      const int32_t* const halves = a.x.half_sums + 2 * group;
      const int32_t x_sum = f.parts() == 1 ? halves[0] + halves[1] : halves[part];
      int32_t sum = 0;
      for (int64_t i = part * f.part; i < (part + 1) * f.part; ++i) {
        sum += x[place(i)] * format_value(f, planes, o, i);
      }
      const Factors factors = format_factors(f, tile, g, part, o);
      y = fmaf(static_cast<float>(sum) * a.x.scales[group], factors.scale, y);
      if (f.minimum) y = fmaf(a.x.scales[group] * static_cast<float>(x_sum), factors.minimum, y);
    }
  }
  return y;
}

inline void multiply_format(const MultiplyArgs& a) {
  const int64_t tile_size = a.x.groups * spec_of(a.format).group_bytes();
  for (int64_t r = 0; r < a.rows; ++r) {
    const auto at = [&](int64_t g) { return a.x.at(a.first_row + r, g); };
    for (int64_t output = 0; output < a.outputs; ++output) {
      const uint8_t* const tile = a.weight + output / kTile * tile_size;
      const float bias = a.bias ? a.bias[output] : 0.0f;
      a.y[r * a.y_stride + output] = add_format(a, tile, output % kTile, at, bias);
    }
  }
}

inline void multiply(const MultiplyArgs& a) {
  if (a.format != Format::integers) return multiply_format(a);
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

constexpr MatMulKernels matmul_kernels = {quantize, quantize_bytes, quantize_twice, multiply};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
