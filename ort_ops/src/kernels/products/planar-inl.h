// How the kernels read a weight in a format of kernels/products/formats.h: the quad of inputs v of
// a group as unsigned bytes, and the scales and minima of a group as floats.
#pragma once

#include <stdint.h>

#include "kernels/products/formats.h"
#include "kernels/products/matmul_weights-inl.h"
#include "kernels/products/planar_grids-inl.h"
#include "kernels/products/planar_scales-inl.h"
#include "simd/simd_int.h"
#include "simd/target.h"

#if defined(TAMIZ_VECTORS)

namespace tamiz {
namespace TAMIZ_TARGET {

/// Words shifted right by -4 .. 4 in twos or ones; a constant where loops are unrolled.
__attribute__((always_inline)) inline Ints moved_right(Ints x, int bits) {
  switch (bits) {
    case -4:
      return words_left<4>(x);
    case -3:
      return words_left<3>(x);
    case -2:
      return words_left<2>(x);
    case -1:
      return words_left<1>(x);
    case 1:
      return words_right<1>(x);
    case 2:
      return words_right<2>(x);
    case 3:
      return words_right<3>(x);
    case 4:
      return words_right<4>(x);
    case 5:
      return words_right<5>(x);
    case 6:
      return words_right<6>(x);
    default:
      return x;
  }
}

/// Field `v` of a plane of `Bits` bits, moved to bit `To` of every byte.
template <int Bits, int To>
__attribute__((always_inline)) inline Ints field(const uint8_t* plane, int v) {
  constexpr int kFields = 8 / Bits;
  constexpr int kMask = ((1 << Bits) - 1) << To;
  const Ints x = load_ints(plane + 64 * (v / kFields));
  if (To == 0 && v % kFields == kFields - 1) return bytes_right<8 - Bits>(x);
  return bits_and(moved_right(x, v % kFields * Bits - To), all_words(kMask * 0x0101));
}

/// The values of a codebook, 128 too large.
struct ByteTable {
  alignas(16) uint8_t values[16] = {};
  constexpr explicit ByteTable(const int8_t* codebook) {
    for (int i = 0; i < 16; ++i) values[i] = static_cast<uint8_t>(codebook[i] + 128);
  }
};

template <Format F>
struct Planar {
  static constexpr const FormatSpec& kSpec = spec_of(F);
  static constexpr int64_t kGroupBytes = kSpec.group_bytes();
  static constexpr bool kUnits = false;
  static constexpr bool kSuper = kSpec.super_block();
  using Super = SuperScales<F>;
  static constexpr int kParts = static_cast<int>(kSpec.parts());
  static constexpr bool kApart = false;
  static constexpr bool kPaired = false;
  static constexpr bool kFromMemory = true;
  static constexpr int kVectors = 8;
  static constexpr bool kMinima = kSpec.minimum;
  static constexpr int kOffset = kSpec.codebook || kSpec.grid ? 128 : kSpec.offset;

  /// Always inline: GCC would call it, and spill all sums around each call.
  __attribute__((always_inline)) static Ints vector(const uint8_t* planes, int strip, int v) {
    if constexpr (kSpec.grid != nullptr) {
      return grid_quads<*kSpec.grid>(planes, strip, v);
    } else {
      return plane_quads(planes + 4 * kLanes * strip, v);
    }
  }
  __attribute__((always_inline)) static Ints plane_quads(const uint8_t* at, int v) {
    Ints quants = field<kSpec.low, 0>(at, v);
    if constexpr (kSpec.high > 0) {
      constexpr int64_t kLowBytes = kGroup * kTile * kSpec.low / 8;
      quants = bits_or(quants, field<kSpec.high, kSpec.low>(at + kLowBytes, v));
    }
    if constexpr (kSpec.codebook != nullptr) {
      static constexpr ByteTable kTable(kSpec.codebook);
      quants = look_up(kTable.values, quants);
    }
    return quants;
  }
  template <int Pair>
  static Ints words(Ints x) {
    return Pair == 0 ? bits_and(x, all_words(255)) : words_right<8>(x);
  }
  template <int>
  static Ints bytes(Ints x) {
    return x;
  }

  static const uint8_t* group(const uint8_t* tile, int64_t g) { return tile + kSpec.planes_of(g); }

  /// Of a group that is a block.
  static Vec scales(const uint8_t* group, int strip) {
    const uint8_t* const at = group + kSpec.plane_bytes();
    if constexpr (kSpec.scales == Scales::exponent) {
      const Vec exponents = to_float(wide_bytes(at + kLanes * strip)) - broadcast(128.0f);
      return times_power_of_two(broadcast(1.0f), exponents);
    }
    return load_halves(at + 2 * kLanes * strip);
  }
  static Vec minima(const uint8_t* group, int strip) {
    if (!kMinima) return broadcast(0.0f);
    return load_halves(group + kSpec.plane_bytes() + 2 * kTile + 2 * kLanes * strip);
  }
};

template <Format F>
constexpr bool kIsBytes<Planar<F>> = true;
template <Format F>
constexpr bool kUnpackedOnce<Planar<F>> = spec_of(F).grid != nullptr;

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
