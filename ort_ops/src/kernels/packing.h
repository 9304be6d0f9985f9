// How a block-quantised weight [N outputs, K inputs] lies in memory, in the file as in the kernels.
//
// A tile is 16 outputs, a group 32 inputs; the groups of a tile follow each other, the tiles too.
// N and K are padded with zeros. A group of a tile:
//
//   4 bits, 320 bytes: w = scale * q + minimum, q in 0 .. 15
//     4 vectors of 64 bytes; byte 4o + i of vector v holds input 8v + i of output o in the low
//     nibble and input 8v + 4 + i in the high one; then 16 fp16 scales, then 16 fp16 minima
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
constexpr int64_t group_bytes(int bits) { return quant_bytes(bits) + (bits == 4 ? 4 : 2) * kTile; }

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

static inline float weight_scale(const uint8_t* group, int bits, int64_t o) {
  return half_to_float(group + quant_bytes(bits) + 2 * o);
}

static inline float weight_minimum(const uint8_t* group, int bits, int64_t o) {
  return bits == 4 ? half_to_float(group + quant_bytes(bits) + 2 * (kTile + o)) : 0.0f;
}

}  // namespace tamiz
