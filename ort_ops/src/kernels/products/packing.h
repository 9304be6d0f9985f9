// How a block-quantised weight [N outputs, K inputs] lies in memory, in the file as in the kernels.
//
// A tile is 16 outputs, a group 32 inputs; the groups of a tile follow each other, the tiles too.
// N and K are padded with zeros. A group of a tile:
//
//   4 bits, 320 bytes: w = scale * q + minimum, q in 0 .. 15
//     4 vectors of 64 bytes; byte 4o + i of vector v holds input 8v + i of output o in the low
//     nibble and input 8v + 4 + i in the high one; then 16 fp16 scales, then 16 fp16 minima
//   4 bits with scales of 8, 288 bytes: w = unit * (scale * q - 8 * minimum), the factors 0 .. 255
//     the same vectors; then 16 bytes of scales, then 16 of minima. An output has one unit: after
//     the groups of a tile follow 16 fp16 numbers, 256 times the units of its outputs (a unit may
//     be smaller than what fp16 holds well)
//   8 bits, 544 bytes: w = scale * q, q in -127 .. 127
//     8 vectors of 64 bytes; byte 4o + i of vector v holds q + 128 of input 4v + i of output o;
//     then 16 fp16 scales
//
// Functions have internal linkage, so that no target's instructions leak into another.
#pragma once

#include <stdint.h>
#include <string.h>

namespace tamiz {

constexpr int64_t kGroup = 32;
constexpr int64_t kTile = 16;

constexpr int64_t group_count(int64_t k) { return (k + kGroup - 1) / kGroup; }
constexpr int64_t tile_count(int64_t n) { return (n + kTile - 1) / kTile; }
constexpr int64_t quant_bytes(int bits) { return kGroup * kTile * bits / 8; }
constexpr int64_t group_bytes(int bits, int scale_bits = 16) {
  return quant_bytes(bits) + (bits == 4 ? 2 : 1) * scale_bits / 8 * kTile;
}
constexpr int64_t unit_bytes(int scale_bits) { return scale_bits == 8 ? 2 * kTile : 0; }
constexpr int64_t tile_bytes(int64_t groups, int bits, int scale_bits = 16) {
  return groups * group_bytes(bits, scale_bits) + unit_bytes(scale_bits);
}

constexpr float kMinimumStep = -8.0f;  // times a minimum of 8 bits, in units
constexpr float kUnitStep = 0x1p-8f;   // times a stored unit

/// The quant of output `o` and input `i` of a group.
static inline int weight_quant(const uint8_t* group, int bits, int64_t o, int64_t i) {
  if (bits == 8) return group[i / 4 * 64 + 4 * o + i % 4] - 128;
  const uint8_t both = group[i / 8 * 64 + 4 * o + i % 4];
  return i % 8 < 4 ? both & 15 : both >> 4;
}

/// IEEE half precision to single, exactly.
static inline float half_to_float(const uint8_t* p) {
  uint16_t half;
  memcpy(&half, p, sizeof(half));
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t rest = (half & 0x7fffu) << 13;  // exponent and mantissa in their places
  const bool finite = rest < 0x7c00u << 13;
  const uint32_t bits = sign | (finite ? rest : rest | 0x7f800000u);
  float value;
  memcpy(&value, &bits, sizeof(value));
  return finite ? value * 0x1p112f : value;  // the exponents' offsets are 127 and 15
}

/// A scale as a number, or of 8 bits in units.
static inline float weight_scale(const uint8_t* group, int bits, int64_t o, int scale_bits = 16) {
  const uint8_t* const scales = group + quant_bytes(bits);
  return scale_bits == 8 ? scales[o] : half_to_float(scales + 2 * o);
}

/// A minimum as a number, or of 8 bits in units.
static inline float weight_minimum(const uint8_t* group, int bits, int64_t o, int scale_bits = 16) {
  if (bits != 4) return 0.0f;
  const uint8_t* const scales = group + quant_bytes(bits);
  return scale_bits == 8 ? kMinimumStep * scales[kTile + o]
                         : half_to_float(scales + 2 * (kTile + o));
}

/// What scales and minima of output `o` are multiplied with, of a tile with `groups` groups.
static inline float weight_unit(const uint8_t* tile, int64_t groups, int64_t o, int scale_bits) {
  if (scale_bits != 8) return 1.0f;
  return half_to_float(tile + groups * group_bytes(4, scale_bits) + 2 * o) * kUnitStep;
}

}  // namespace tamiz
