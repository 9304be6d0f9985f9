// How the kernels read vectors of a codebook (kernels/products/grids.h): the quad of inputs v of a
// group as bytes 128 too large.
//
// With VBMI the codes of 32 vectors are looked up in registers, 64 at a time, and their levels are
// fields of bits that one instruction spreads to bytes. Elsewhere each lane loads its quad from a
// table of whole vectors.
#pragma once

#include <stdint.h>

#include "kernels/products/grids.h"
#include "simd/simd_int.h"
#include "simd/target.h"

#if defined(TAMIZ_VECTORS)

namespace tamiz {
namespace TAMIZ_TARGET {

/// Numbers below 256 shifted left by 1 .. 8; a constant where loops are unrolled.
TAMIZ_ALWAYS_INLINE Ints moved_left(Ints x, int bits) {
  switch (bits) {
    case 1:
      return ints_left<1>(x);
    case 2:
      return ints_left<2>(x);
    case 3:
      return ints_left<3>(x);
    case 4:
      return ints_left<4>(x);
    case 5:
      return ints_left<5>(x);
    case 6:
      return ints_left<6>(x);
    case 7:
      return ints_left<7>(x);
    default:
      return ints_left<8>(x);
  }
}

/// `grid_number` of a strip.
template <const Grid& G>
TAMIZ_ALWAYS_INLINE Ints grid_numbers(const uint8_t* group, int strip, int j) {
  const Ints low = wide_bytes(group + kTile * j + kLanes * strip);
  if constexpr (G.high == 0) return low;
  constexpr int kFields = G.high == 0 ? 1 : 8 / G.high;
  const uint8_t* const at = group + G.high_at() + j / kFields * kTile + kLanes * strip;
  const Ints high = moved_left(wide_bytes(at), 8 - j % kFields * G.high);
  return bits_or(low, bits_and(high, all_ints(((1 << G.high) - 1) << 8)));
}

/// What a byte of a level is stored with: 128, and what is added where the bit of a vector is 0.
template <const Grid& G>
constexpr int kLevelOffset = G.signs ? 128 : 129;

#if defined(TAMIZ_VBMI)

/// The words of a table of 2^Bits words that the words of n number.
template <int Bits>
TAMIZ_ALWAYS_INLINE Ints look_up_words(const uint16_t* table, Ints n) {
  if constexpr (Bits <= 6) {
    return _mm512_permutex2var_epi16(load_ints(table), n, load_ints(table + 32));
  } else {
    const Ints low = look_up_words<Bits - 1>(table, n);
    const Ints high = look_up_words<Bits - 1>(table + (1 << (Bits - 1)), n);
    const __mmask32 upper = _mm512_test_epi16_mask(n, all_words(1 << (Bits - 1)));
    return _mm512_mask_blend_epi16(upper, low, high);
  }
}

/// Bytes of levels, which any 6 bits number whose lowest are those of the level.
template <const Grid& G>
struct LevelBytes {
  alignas(64) uint8_t bytes[64] = {};
  constexpr LevelBytes() {
    for (int i = 0; i < 64; ++i) {
      bytes[i] = static_cast<uint8_t>(G.levels[i & ((1 << G.level_bits) - 1)] + kLevelOffset<G>);
    }
  }
};

/// The levels of the quad of inputs v.
template <const Grid& G>
TAMIZ_ALWAYS_INLINE Ints grid_levels(const uint8_t* group, int strip, int v) {
  static constexpr LevelBytes<G> kLevels;
  const int j = v * 4 / G.step, pair = j / 2 * 2;
  const Ints numbers = bits_or(grid_numbers<G>(group, strip, pair),
                               ints_left<16>(grid_numbers<G>(group, strip, pair + 1)));
  const Ints codes = look_up_words<G.bits>(G.codes, numbers);
  uint64_t from = 0;  // the lowest bit of each byte's level in two lanes
  for (int byte = 0; byte < 8; ++byte) {
    const int input = v * 4 % G.step + byte % 4;
    const int bit = byte / 4 * 32 + j % 2 * 16 + input * G.level_bits;
    from |= static_cast<uint64_t>(bit) << 8 * byte;
  }
  return _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(all_longs(from), codes),
                                 load_ints(kLevels.bytes));
}

#else

/// The quads of all vectors: [quads of a vector, vectors], as the bytes of integers.
template <const Grid& G>
struct QuadTable {
  static constexpr int kVectors = 1 << G.bits;
  uint32_t quads[G.step / 4 * kVectors] = {};
  constexpr QuadTable() {
    for (int at = 0; at < G.step / 4 * kVectors; ++at) {
      for (int i = 0; i < 4; ++i) {
        const int level = G.level(at % kVectors, at / kVectors * 4 + i) + kLevelOffset<G>;
        quads[at] |= static_cast<uint32_t>(level) << 8 * i;
      }
    }
  }
};

/// The levels of the quad of inputs v.
template <const Grid& G>
TAMIZ_ALWAYS_INLINE Ints grid_levels(const uint8_t* group, int strip, int v) {
  static constexpr QuadTable<G> kTable;
  Ints numbers = grid_numbers<G>(group, strip, v * 4 / G.step);
  if constexpr (8 + G.high > G.bits) numbers = bits_and(numbers, all_ints((1 << G.bits) - 1));
  return gather_ints(kTable.quads + v * 4 % G.step / 4 * QuadTable<G>::kVectors, numbers);
}

#endif

/// The quad of inputs v of a strip.
template <const Grid& G>
TAMIZ_ALWAYS_INLINE Ints grid_quads(const uint8_t* group, int strip, int v) {
  const Ints levels = grid_levels<G>(group, strip, v);
  if constexpr (G.signs) {
    return negate_bytes(levels, load_ints(group + G.signs_at() + 4 * kLanes * strip), v);
  }
  const Ints minus = ints_right<G.bits>(grid_numbers<G>(group, strip, v * 4 / G.step));
  return ints_minus(levels, bits_and(ints_minus(all_ints(0), minus), all_ints(0x02020202)));
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
