// The weight formats of GGUF files, whose bits are kept as they are. tamiz_ops.formats says what
// each format holds; here is how a tile of 16 outputs lies in memory.
//
//   w = scale * value + minimum, value = quant - offset or codebook[quant]
//
// or, where a codebook has vectors of 4 or 8 inputs, as kernels/products/grids.h says.
//
// A group is 32 inputs. Its quants lie in planes, low bits first; a plane of b bits is b
// vectors of 64 bytes, and byte 4o + i of vector v holds in its field j, of b bits, input
// 4 (8 / b v + j) + i of output o. A block of 32 inputs is
//
//   planes, 16 scales (fp16 or an exponent), 16 fp16 minima where the format has them
//
// and a super-block of 256 inputs, whose scales are d * s and whose minima are -dmin * m,
//
//   vectors of 16 bytes of small scales, 16 fp16 d, 16 fp16 dmin, planes of 8 groups
//
// where d is fp32 beside small scales that are small_float.
//
// Small scales, byte o of each vector: 4 bits: s | m << 4, a vector for every 16 inputs; 8 bits: s,
// likewise; 6 bits: three vectors hold four numbers, three in the low 6 bits, the fourth in the
// high 2 bits of the three; first all s, then all m; odd: s = 2 t + 1, t of part i in bits 0 .. 3
// and of part i + 1 in bits 4 .. 7, a vector for every two parts; small_float: s is a number of 3
// bits of mantissa below 4 bits of exponent (e4m3 without a sign), a vector for every part.
//
// A group with a codebook of vectors has no planes, but the numbers of its vectors: the lowest 8
// bits, 16 bytes for each vector; the bits above, fields of byte o of vectors of 16 bytes, lowest
// first; and signs, a plane of one bit.
//
// f16 and bf16 have no scales: 16 numbers of 2 bytes for every input.
//
// Functions have internal linkage, so that no target's instructions leak into another.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/products/grids.h"
#include "kernels/products/packing.h"

namespace tamiz {

/// `integers`: kernels/products/packing.h, of 4 or 8 bits.
enum class Format : int {
  integers,
  q4_0,
  q5_0,
  q5_1,
  iq4_nl,
  mxfp4,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_xs,
  tq2_0,
  f16,
  bf16,
  iq1_s,
  iq1_m,
  iq2_xxs,
  iq2_xs,
  iq2_s,
  iq3_xxs,
  iq3_s,
  nvfp4,
  count
};

enum class Scales {
  half,
  exponent,
  four,
  six,
  six_signed,
  signed_byte,
  odd,
  small_float,
  none,
  number
};

struct FormatSpec {
  const char* name;
  int low, high;  // bits of the planes; high may be 0
  Scales scales;
  int64_t part;  // inputs of a group that share a scale: 32 or 16
  int offset;
  const int8_t* codebook;  // 16 values, or null
  bool minimum;
  const Grid* grid = nullptr;

  constexpr bool super_block() const { return scales >= Scales::four && scales < Scales::number; }
  constexpr bool number() const { return scales == Scales::number; }
  constexpr int64_t parts() const { return kGroup / part; }
  /// Inputs that K is a multiple of.
  constexpr int64_t block() const { return super_block() ? 8 * kGroup : kGroup; }
  constexpr int64_t plane_bytes() const {
    return grid ? grid->bytes() : kGroup * kTile * (low + high) / 8;
  }
  /// Vectors of small scales of a super-block.
  constexpr int64_t small_scales() const {
    const int64_t numbers = 8 * parts() * (minimum ? 2 : 1);
    if (scales == Scales::four || scales == Scales::odd) return numbers / 2;
    if (scales == Scales::none) return 0;
    const bool bytes = scales == Scales::signed_byte || scales == Scales::small_float;
    return bytes ? numbers : numbers * 3 / 4;
  }
  /// Where d and dmin of a super-block begin, and the bytes of one: fp16, or fp32.
  constexpr int64_t factors_at() const { return small_scales() * kTile; }
  constexpr int64_t factor_bytes() const { return scales == Scales::small_float ? 4 : 2; }
  /// Where the planes of a super-block begin.
  constexpr int64_t planes_at() const {
    return factors_at() + factor_bytes() * kTile * (minimum ? 2 : 1);
  }
  /// Bytes of a group; of a super-block an eighth.
  constexpr int64_t group_bytes() const {
    if (super_block()) return planes_at() / 8 + plane_bytes();
    const int64_t factor = scales == Scales::exponent ? 1 : number() ? 0 : 2;
    return plane_bytes() + factor * kTile * (minimum ? 2 : 1);
  }
  /// Where the planes of group `g` begin in a tile.
  constexpr int64_t planes_of(int64_t g) const {
    if (!super_block()) return g * group_bytes();
    return g / 8 * 8 * group_bytes() + planes_at() + g % 8 * plane_bytes();
  }
};

constexpr int8_t kNonLinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
constexpr int8_t kMicroscaling[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// In the order of Format.
constexpr FormatSpec kFormats[] = {
    {"integers", 4, 0, Scales::half, 32, 0, nullptr, true},
    {"q4_0", 4, 0, Scales::half, 32, 8, nullptr, false},
    {"q5_0", 4, 1, Scales::half, 32, 16, nullptr, false},
    {"q5_1", 4, 1, Scales::half, 32, 0, nullptr, true},
    {"iq4_nl", 4, 0, Scales::half, 32, 0, kNonLinear, false},
    {"mxfp4", 4, 0, Scales::exponent, 32, 0, kMicroscaling, false},
    {"q2_k", 2, 0, Scales::four, 16, 0, nullptr, true},
    {"q3_k", 2, 1, Scales::six_signed, 16, 4, nullptr, false},
    {"q4_k", 4, 0, Scales::six, 32, 0, nullptr, true},
    {"q5_k", 4, 1, Scales::six, 32, 0, nullptr, true},
    {"q6_k", 4, 2, Scales::signed_byte, 16, 32, nullptr, false},
    {"iq4_xs", 4, 0, Scales::six_signed, 32, 0, kNonLinear, false},
    {"tq2_0", 2, 0, Scales::none, 32, 1, nullptr, false},
    {"f16", 16, 0, Scales::number, 32, 0, nullptr, false},
    {"bf16", 16, 0, Scales::number, 32, 0, nullptr, false},
    {"iq1_s", 0, 0, Scales::odd, 32, 0, nullptr, false, &kIq1},
    {"iq1_m", 0, 0, Scales::odd, 16, 0, nullptr, false, &kIq1},
    {"iq2_xxs", 0, 0, Scales::odd, 32, 0, nullptr, false, &kIq2Xxs},
    {"iq2_xs", 0, 0, Scales::odd, 16, 0, nullptr, false, &kIq2Xs},
    {"iq2_s", 0, 0, Scales::odd, 16, 0, nullptr, false, &kIq2S},
    {"iq3_xxs", 0, 0, Scales::odd, 32, 0, nullptr, false, &kIq3Xxs},
    {"iq3_s", 0, 0, Scales::odd, 32, 0, nullptr, false, &kIq3S},
    {"nvfp4", 4, 0, Scales::small_float, 16, 0, kMicroscaling, false},
};
static_assert(sizeof(kFormats) / sizeof(kFormats[0]) == static_cast<size_t>(Format::count), "");

constexpr const FormatSpec& spec_of(Format format) { return kFormats[static_cast<int>(format)]; }

/// What a signed scale of 6 bits is stored with.
constexpr int kSixOffset = 32;

/// The quant of output `o` and input `i` of a group, as the integer that it stands for.
static inline int format_value(const FormatSpec& f, const uint8_t* planes, int64_t o, int64_t i) {
  if (f.grid) return grid_value(*f.grid, planes, o, i);
  int quant = 0, shift = 0;
  const int widths[] = {f.low, f.high};
  for (int plane = 0; plane < 2 && widths[plane] > 0; ++plane) {
    const int bits = widths[plane];
    const int64_t fields = 8 / bits, quad = i / 4;
    const uint8_t byte = planes[quad / fields * 64 + 4 * o + i % 4];
    quant |= (byte >> quad % fields * bits & ((1 << bits) - 1)) << shift;
    shift += bits;
    planes += kGroup * kTile * bits / 8;
  }
  return f.codebook ? f.codebook[quant] : quant - f.offset;
}

/// Small scale `i` of output `o`, of 6 bits.
static inline int six_bits(const uint8_t* small, int64_t i, int64_t o) {
  const uint8_t* const three = small + i / 4 * 3 * kTile + o;
  if (i % 4 < 3) return three[i % 4 * kTile] & 63;
  return three[0] >> 6 | three[kTile] >> 6 << 2 | three[2 * kTile] >> 6 << 4;
}

/// (1 + m / 8) 2^(e - 7) of bits e m; of e = 0 m 2^-9.
static inline float small_float(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  return exponent ? ldexpf(static_cast<float>(8 + mantissa), exponent - 10)
                  : ldexpf(static_cast<float>(mantissa), -9);
}

struct Factors {
  float scale, minimum;
};

/// Of output `o` of a tile in part `part` of group `g`.
static inline Factors format_factors(const FormatSpec& f, const uint8_t* tile, int64_t g,
                                     int64_t part, int64_t o) {
  if (!f.super_block()) {
    const uint8_t* const at = tile + g * f.group_bytes() + f.plane_bytes();
    if (f.scales == Scales::exponent) return {ldexpf(1.0f, at[o] - 128), 0.0f};
    return {half_to_float(at + 2 * o), f.minimum ? half_to_float(at + 2 * (kTile + o)) : 0.0f};
  }
  const uint8_t* const block = tile + g / 8 * 8 * f.group_bytes();
  const uint8_t* const factors = block + f.factors_at();
  const int64_t i = g % 8 * f.parts() + part;
  if (f.scales == Scales::small_float) {
    float d;
    memcpy(&d, factors + sizeof(d) * o, sizeof(d));
    return {d * small_float(block[kTile * i + o]), 0.0f};
  }
  const float d = half_to_float(factors + 2 * o);
  if (f.scales == Scales::none) return {d, 0.0f};
  if (f.scales == Scales::odd) {
    const int both = block[kTile * (i / 2) + o];
    return {d * f.grid->unit * static_cast<float>(2 * (both >> i % 2 * 4 & 15) + 1), 0.0f};
  }
  if (f.scales == Scales::signed_byte) {
    return {d * static_cast<float>(static_cast<int8_t>(block[kTile * i + o])), 0.0f};
  }
  if (f.scales == Scales::six_signed) {
    return {d * static_cast<float>(six_bits(block, i, o) - kSixOffset), 0.0f};
  }
  const float dmin = half_to_float(factors + 2 * (kTile + o));
  if (f.scales == Scales::four) {
    const uint8_t both = block[kTile * i + o];
    return {d * static_cast<float>(both & 15), -dmin * static_cast<float>(both >> 4)};
  }
  const int64_t minima = 8 * f.parts();
  return {d * static_cast<float>(six_bits(block, i, o)),
          -dmin * static_cast<float>(six_bits(block, minima + i, o))};
}

/// Element `i` of output `o` of a tile of f16 or bf16.
static inline float format_number(Format format, const uint8_t* tile, int64_t i, int64_t o) {
  const uint8_t* const at = tile + 2 * (i * kTile + o);
  if (format == Format::f16) return half_to_float(at);
  uint32_t bits = static_cast<uint32_t>(at[0]) << 16 | static_cast<uint32_t>(at[1]) << 24;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace tamiz
