// How the kernels read a weight in a format of kernels/products/formats.h: the quad of inputs v of
// a group as unsigned bytes, and the scales and minima of a group or a super-block as floats.
#pragma once

#include <stdint.h>

#include "kernels/products/formats.h"
#include "kernels/products/matmul_weights-inl.h"
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
  static constexpr int kParts = static_cast<int>(kSpec.parts());
  static constexpr int kStep = kTile * (kSpec.minimum ? 2 : 1);  // floats of a part in `spread`
  static constexpr bool kApart = false;
  static constexpr bool kPaired = false;
  static constexpr bool kCheap = false;
  static constexpr bool kFromMemory = true;
  static constexpr int kVectors = 8;
  static constexpr bool kMinima = kSpec.minimum;
  static constexpr int kOffset = kSpec.codebook ? 128 : kSpec.offset;

  /// Always inline: GCC would call it, and spill all sums around each call.
  __attribute__((always_inline)) static Ints vector(const uint8_t* planes, int strip, int v) {
    const uint8_t* const at = planes + 4 * kLanes * strip;
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

  /// Scales and minima of a super-block: [8 groups, parts, 1 or 2, 16].
  static void spread(const uint8_t* block, float* to) {
#if defined(TAMIZ_HALVES)
    if constexpr (kSpec.scales == Scales::six || kSpec.scales == Scales::six_signed) {
      return spread_sixes_of_tile(block, to);
    }
#endif
    for (int strip = 0; strip < kStrips; ++strip, to += kLanes) {
      const uint8_t* const small = block + kLanes * strip;
      const uint8_t* const halves = block + kSpec.halves_at() + 2 * kLanes * strip;
      const Vec d = load_halves(halves);
      if constexpr (kSpec.scales == Scales::none) {
        for (int i = 0; i < kNumbers; ++i) store(to + i * kStep, d);
      } else if constexpr (kSpec.scales == Scales::signed_byte) {
        for (int i = 0; i < kNumbers; ++i) {
          const int8_t* const signed_bytes = reinterpret_cast<const int8_t*>(small + kTile * i);
          store(to + i * kStep, bytes_to_float(signed_bytes) * d);
        }
      } else {
        Vec dmin = d;
        if constexpr (kMinima) dmin = broadcast(-1.0f) * load_halves(halves + 2 * kTile);
        if constexpr (kSpec.scales == Scales::four) {
          spread_fours(small, d, dmin, to);
        } else {
          spread_sixes(small, d, dmin, to);
        }
      }
    }
  }

 private:
#if defined(TAMIZ_HALVES)
  /// Numbers of 16 outputs at a time: below the bits of 2^23 an integer n makes 2^23 + n.
  static void spread_sixes_of_tile(const uint8_t* block, float* to) {
    const uint8_t* const halves = block + kSpec.halves_at();
    Vec d[kStrips], dmin[kStrips];
    for (int s = 0; s < kStrips; ++s) {
      d[s] = load_halves(halves + 2 * kLanes * s);
      dmin[s] = d[s];
      if (kMinima) dmin[s] = broadcast(-1.0f) * load_halves(halves + 2 * kTile + 2 * kLanes * s);
    }
    constexpr float kFirst = 0x1p23f + (kSpec.scales == Scales::six_signed ? kSixOffset : 0);
    const Ints4 zero = {}, above = as<Ints4>(all_of<Words8>(int16_t{0x4b00}));
    const Floats4 offset = all_of<Floats4>(kFirst);
    const uint8_t* small = block;
    for (int i = 0; i < (kMinima ? 2 : 1) * kNumbers; i += 4, small += 3 * kTile) {
      const bool minima = i >= kNumbers;
      const UBytes16 a = read<UBytes16>(small), b = read<UBytes16>(small + kTile);
      const UBytes16 c = read<UBytes16>(small + 2 * kTile), low = all_of<UBytes16>(uint8_t{63});
      const UBytes16 last = ((((c >> 6) << 2) + (b >> 6)) << 2) + (a >> 6);
      const UBytes16 numbers[4] = {a & low, b & low, c & low, last};
      for (int j = 0; j < 4; ++j) {
        const Ints4 words[2] = {half_low_bytes(as<Ints4>(numbers[j]), zero),
                                half_high_bytes(as<Ints4>(numbers[j]), zero)};
        float* const at = to + (i % kNumbers + j) * kStep + (minima ? kTile : 0);
        for (int s = 0; s < kStrips; ++s) {
          const Vec x = {as<Floats4>(half_low_words(words[s], above)) - offset,
                         as<Floats4>(half_high_words(words[s], above)) - offset};
          store(at + s * kLanes, x * (minima ? dmin[s] : d[s]));
        }
      }
    }
  }
#endif

  static constexpr int kNumbers = 8 * static_cast<int>(kSpec.parts());  // of scales

  static void spread_fours(const uint8_t* small, Vec d, Vec dmin, float* to) {
    for (int i = 0; i < kNumbers; ++i) {
      const Ints both = wide_bytes(small + kTile * i);
      store(to + i * kStep, to_float(bits_and(both, all_ints(15))) * d);
      store(to + i * kStep + kTile, to_float(ints_right<4>(both)) * dmin);
    }
  }

  static void spread_sixes(const uint8_t* small, Vec d, Vec dmin, float* to) {
    for (int i = 0; i < (kMinima ? 2 : 1) * kNumbers; i += 4, small += 3 * kTile) {
      const bool minima = i >= kNumbers;
      Ints number[4];
      for (int j = 0; j < 3; ++j) number[j] = wide_bytes(small + kTile * j);
      number[3] = bits_or(
          ints_right<6>(number[0]),
          bits_or(ints_left<2>(ints_right<6>(number[1])), ints_left<4>(ints_right<6>(number[2]))));
      for (int j = 0; j < 4; ++j) {
        Ints six = j < 3 ? bits_and(number[j], all_ints(63)) : number[3];
        if (kSpec.scales == Scales::six_signed) six = ints_plus(six, all_ints(-kSixOffset));
        float* const at = to + (i % kNumbers + j) * kStep + (minima ? kTile : 0);
        store(at, to_float(six) * (minima ? dmin : d));
      }
    }
  }
};

template <Format F>
constexpr bool kIsBytes<Planar<F>> = true;

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
