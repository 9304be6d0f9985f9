// Scales and minima of the super-blocks of kernels/products/formats.h, for one tile:
//
//   scale = d s, minimum = -dmin m
//
// Of a super-block number i is that of part i % parts of group i / parts. Products of d and s have
// 19 bits or fewer, so floats hold them exactly; where d is a float they are rounded.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/products/formats.h"
#include "kernels/products/matmul_weights-inl.h"
#include "simd/simd_int.h"
#include "simd/target.h"

#if defined(TAMIZ_VECTORS)

namespace tamiz {
namespace TAMIZ_TARGET {

/// As floats: [8 groups, parts, 1 or 2, 16].
template <Format F>
class FloatScales {
 public:
  void read(const uint8_t* block) {
    float* to = numbers_;
    for (int strip = 0; strip < kStrips; ++strip, to += kLanes) {
      const uint8_t* const small = block + kLanes * strip;
      const uint8_t* const factors =
          block + kSpec.factors_at() + kSpec.factor_bytes() * kLanes * strip;
      const Vec d = load_factors(factors);
      if constexpr (kSpec.scales == Scales::none) {
        for (int i = 0; i < kNumbers; ++i) store(to + i * kStep, d);
      } else if constexpr (kSpec.scales == Scales::signed_byte) {
        for (int i = 0; i < kNumbers; ++i) {
          const int8_t* const signed_bytes = reinterpret_cast<const int8_t*>(small + kTile * i);
          store(to + i * kStep, bytes_to_float(signed_bytes) * d);
        }
      } else if constexpr (kSpec.scales == Scales::small_float) {
        for (int i = 0; i < kNumbers; ++i)
          store(to + i * kStep, small_floats(small + kTile * i) * d);
      } else if constexpr (kSpec.scales == Scales::odd) {
        read_odds(small, d * broadcast(kSpec.grid->unit), to);
      } else {
        Vec dmin = d;
        if constexpr (kSpec.minimum) dmin = broadcast(-1.0f) * load_halves(factors + 2 * kTile);
        if constexpr (kSpec.scales == Scales::four) {
          read_fours(small, d, dmin, to);
        } else {
          read_sixes(small, d, dmin, to);
        }
      }
    }
  }
  Vec scales(int64_t i, int strip) const { return load(numbers_ + i * kStep + strip * kLanes); }
  Vec minima(int64_t i, int strip) const {
    return load(numbers_ + i * kStep + kTile + strip * kLanes);
  }

 private:
  static constexpr const FormatSpec& kSpec = spec_of(F);
  static constexpr int kNumbers = 8 * static_cast<int>(kSpec.parts());  // of scales
  static constexpr int kStep = kTile * (kSpec.minimum ? 2 : 1);         // floats of a part

  static Vec load_factors(const uint8_t* p) {
    if constexpr (kSpec.factor_bytes() == 4) return load(reinterpret_cast<const float*>(p));
    return load_halves(p);
  }

  /// Exponent and mantissa where floats have them: right but for an exponent of 0, where
  /// 2^-7 (1 + m / 8) stands for m 2^-9.
  static Vec small_floats(const uint8_t* bits) {
    const Ints moved = ints_left<20>(wide_bytes(bits));
    const Vec x = bits_float(ints_plus(moved, all_ints(120 << 23)));
    const Vec below = (x - broadcast(0x1p-7f)) * broadcast(2.0f);
    return select_le(broadcast(0x1p-6f), x, x, below);
  }

  static void read_fours(const uint8_t* small, Vec d, Vec dmin, float* to) {
    for (int i = 0; i < kNumbers; ++i) {
      const Ints both = wide_bytes(small + kTile * i);
      store(to + i * kStep, to_float(bits_and(both, all_ints(15))) * d);
      store(to + i * kStep + kTile, to_float(ints_right<4>(both)) * dmin);
    }
  }

  static void read_odds(const uint8_t* small, Vec d, float* to) {
    for (int i = 0; i < kNumbers; i += 2) {
      const Ints both = wide_bytes(small + kTile * (i / 2)), one = all_ints(1);
      const Ints low = bits_or(ints_left<1>(bits_and(both, all_ints(15))), one);
      store(to + i * kStep, to_float(low) * d);
      store(to + (i + 1) * kStep, to_float(bits_or(ints_left<1>(ints_right<4>(both)), one)) * d);
    }
  }

  static void read_sixes(const uint8_t* small, Vec d, Vec dmin, float* to) {
    for (int i = 0; i < (kSpec.minimum ? 2 : 1) * kNumbers; i += 4, small += 3 * kTile) {
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

  alignas(64) float numbers_[kNumbers * kStep];
};

#if defined(TAMIZ_HALVES)

/// Those of 6 bits as bytes, which become floats where they are used: ARM stores a vector at the
/// cost of two operations. A byte n < 64 in the high bits of the mantissa of 128 is 128 + n, and
///
///   d n = (128 + n) d - 128 d
///
/// exactly. Of an infinite d this is NaN, where it would be infinite.
template <Format F>
class SixBitScales {
 public:
  void read(const uint8_t* block) {
    const uint8_t* const halves = block + kSpec.factors_at();
    scales_.read(block, halves, 1.0f);
    if (kSpec.minimum) minima_.read(block + kNumbers * 3 / 4 * kTile, halves + 2 * kTile, -1.0f);
  }
  Vec scales(int64_t i, int strip) const { return scales_.at(i, strip); }
  Vec minima(int64_t i, int strip) const { return minima_.at(i, strip); }

 private:
  static constexpr const FormatSpec& kSpec = spec_of(F);
  static constexpr int kNumbers = 8 * static_cast<int>(kSpec.parts());

  struct Numbers {
    void read(const uint8_t* small, const uint8_t* halves, float sign) {
      constexpr float kOffset = 128.0f + (kSpec.scales == Scales::six_signed ? kSixOffset : 0);
      for (int s = 0; s < kStrips; ++s) {
        const Vec d = load_halves(halves + 2 * kLanes * s) * broadcast(sign);
        store(unit[s], d);
        store(offset[s], d * broadcast(-kOffset));
      }
      for (int i = 0; i < kNumbers; i += 4, small += 3 * kTile) {
        const UBytes16 a = read_bytes(small), b = read_bytes(small + kTile);
        const UBytes16 c = read_bytes(small + 2 * kTile), low = all_of<UBytes16>(uint8_t{63});
        const UBytes16 last = ((((c >> 6) << 2) + (b >> 6)) << 2) + (a >> 6);
        const UBytes16 all[4] = {a & low, b & low, c & low, last};
        memcpy(bytes[i], all, sizeof(all));
      }
    }
    Vec at(int64_t i, int strip) const {
      const ULongs2 eight = {TAMIZ_TARGET::read<uint64_t>(bytes[i] + kLanes * strip), 0};
      const Ints4 exponent = as<Ints4>(all_of<UBytes16>(uint8_t{0x43})), zero = {};
      const Ints4 words = half_low_bytes(as<Ints4>(eight), exponent);
      const Vec x = bits_float({half_low_words(zero, words), half_high_words(zero, words)});
      return multiply_add(x, load(unit[strip]), load(offset[strip]));
    }
    static UBytes16 read_bytes(const uint8_t* p) { return TAMIZ_TARGET::read<UBytes16>(p); }

    alignas(16) uint8_t bytes[kNumbers][kTile];
    alignas(16) float unit[kStrips][kLanes];
    alignas(16) float offset[kStrips][kLanes];
  };

  Numbers scales_, minima_;
};

template <Format F>
constexpr bool kInSixBits =
    spec_of(F).scales == Scales::six || spec_of(F).scales == Scales::six_signed;
template <Format F, bool InSixBits>
struct ScalesOf {
  using Kind = FloatScales<F>;
};
template <Format F>
struct ScalesOf<F, true> {
  using Kind = SixBitScales<F>;
};
template <Format F>
using SuperScales = typename ScalesOf<F, kInSixBits<F>>::Kind;

#else

template <Format F>
using SuperScales = FloatScales<F>;

#endif

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
