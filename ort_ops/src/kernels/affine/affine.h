// Weights of other tools' graphs: w = scale (quant - zero), quants of 2, 4 or 8 bits, a scale for
// 16 inputs, for 32, 64, 128 … or for all of an output.
//
// A tile of 16 outputs is the planes of all its groups of 32 inputs, as kernels/products/formats.h
// says, and then, block by block of inputs that share a scale, 16 scales (float32 or fp16) and 16
// zero points (bytes, float32, or none: 2^(bits - 1)). The planes come first, so that a group lies
// at one place whatever shares its scale.
//
// Functions have internal linkage, so that no target's instructions leak into another.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/products/matmul.h"

namespace tamiz {

struct Affine {
  enum Zero : int { none, bytes, floats };

  int bits = 0;         // 0: the weight is none of these
  bool halves = false;  // scales are fp16, or else float32
  Zero zero = none;
  bool parts = false;  // 16 inputs share a scale
  int shift = 0;       // or else 32 << shift

  constexpr int offset() const { return 1 << (bits - 1); }
  constexpr int64_t plane_bytes() const { return kGroup * kTile * bits / 8; }
  constexpr int64_t scale_bytes() const { return (halves ? 2 : 4) * kTile; }
  /// Bytes of the scales and zero points of 16 outputs.
  constexpr int64_t block_bytes() const {
    return scale_bytes() + (zero == floats ? 4 : zero == bytes ? 1 : 0) * kTile;
  }
  constexpr int64_t blocks(int64_t groups) const {
    return parts ? 2 * groups : ((groups - 1) >> shift) + 1;
  }
  /// The block of part `part` of group `g`.
  constexpr int64_t block(int64_t g, int64_t part) const {
    return parts ? 2 * g + part : g >> shift;
  }
  constexpr int64_t tile_bytes(int64_t groups) const {
    return groups * plane_bytes() + blocks(groups) * block_bytes();
  }
};

/// The quant of output `o` and input `i` of a group.
static inline int affine_quant(const Affine& affine, const uint8_t* planes, int64_t o, int64_t i) {
  const int64_t fields = 8 / affine.bits, quad = i / 4;
  const uint8_t byte = planes[quad / fields * 64 + 4 * o + i % 4];
  return byte >> quad % fields * affine.bits & ((1 << affine.bits) - 1);
}

struct ScaleAndZero {
  float scale, zero;
};

/// Of output `o` of a tile in part `part` of group `g`.
static inline ScaleAndZero affine_factors(const Affine& affine, const uint8_t* tile, int64_t groups,
                                          int64_t g, int64_t part, int64_t o) {
  const auto float_at = [](const uint8_t* p) {
    float value;
    memcpy(&value, p, sizeof(value));
    return value;
  };
  const uint8_t* const block =
      tile + groups * affine.plane_bytes() + affine.block(g, part) * affine.block_bytes();
  const uint8_t* const zeros = block + affine.scale_bytes();
  const float scale = affine.halves ? half_to_float(block + 2 * o) : float_at(block + 4 * o);
  if (affine.zero == Affine::none) return {scale, static_cast<float>(affine.offset())};
  return {scale, affine.zero == Affine::floats ? float_at(zeros + 4 * o) : zeros[o]};
}

/// Of `MultiplyArgs`, `bits`, `scale_bits` and `format` count nothing.
struct AffineKernels {
  /// y[r, o] = bias[o] + sum_b ( scale[o,b] x_scale[r,g] (sum_i x_quant[r,i] (quant[o,i] - offset))
  ///                             + scale[o,b] (offset - zero[o,b]) x_sum[r,b] )
  ///
  /// b counts groups, or their halves where 16 inputs share a scale; offset = 2^(bits - 1). The sum
  /// over i is exact, the one over b runs in order, the second term falls away where zero is offset
  /// for all.
  void (*multiply)(const MultiplyArgs&, const Affine&);
};

}  // namespace tamiz
