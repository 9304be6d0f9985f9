// How the kernels read a block-quantised weight (kernels/products/packing.h): vectors of packed
// inputs, as 16-bit words or as bytes, and what scales them.
#pragma once

#include <stdint.h>

#include "kernels/products/matmul.h"
#include "simd/simd_int.h"

#if defined(TAMIZ_VECTORS)

namespace tamiz {
namespace TAMIZ_TARGET {

constexpr int kStrips = kTile / kLanes;  // of a tile
constexpr int kPairs = kGroup / 2;       // of inputs in a group

/// Whether many rows are multiplied as bytes, and these as matrices.
#if defined(TAMIZ_HALVES) && defined(TAMIZ_DOT)
constexpr bool kRowsOfBytes = true;
#else
constexpr bool kRowsOfBytes = false;
#endif
#if defined(TAMIZ_I8MM)
constexpr bool kMatrices = true;
#else
constexpr bool kMatrices = false;
#endif

/// Rows of a block whose sums fit the registers.
#if defined(TAMIZ_HALVES) && (defined(TAMIZ_DOT) || !defined(__aarch64__))
constexpr int kRowRegisters = 2;
#else
constexpr int kRowRegisters = kLanes / 2;
#endif

/// Rows and tiles whose sums with a panel fit the registers, on AVX-512 their outputs too.
#if defined(TAMIZ_AVX512)
constexpr int kBlockRows = 4, kBlockTiles = 3;
#else
constexpr int kBlockRows = kRowRegisters, kBlockTiles = 2 / kStrips;
#endif

/// A weight whose groups follow each other, each with the scales of its 32 inputs.
template <int64_t GroupBytes>
struct PlainGroups {
  static constexpr int64_t kGroupBytes = GroupBytes;
  static constexpr bool kSuper = false;  // scales of 8 groups lie together
  static constexpr int kParts = 1;       // of a group, with a scale each
  static constexpr bool kApart = true;   // vectors of inputs share no bytes
  static constexpr int kOffset = 0;
  static constexpr bool kPaired = false;  // every two vectors of bytes are zipped

  static const uint8_t* group(const uint8_t* tile, int64_t g) { return tile + g * kGroupBytes; }
};

/// Where the parts of a group of one tile lie: vector `v` of a strip, its pairs of inputs as words
/// and its quads as unsigned bytes, both kOffset too large, its scales and minima.
struct Int4 : PlainGroups<group_bytes(4)> {
  static constexpr bool kUnits = false;
  static constexpr bool kFromMemory = true;
  static constexpr int kVectors = 4;
  static constexpr bool kMinima = true;

  static Ints vector(const uint8_t* group, int strip, int v) {
    return load_ints(group + 64 * v + 4 * kLanes * strip);
  }
  template <int Pair>
  static Ints words(Ints x) {
    constexpr int kShift[] = {0, 8, 4, 12};
    x = words_right<kShift[Pair]>(x);
    return kShift[Pair] == 12 ? x : bits_and(x, all_words(15));
  }
  template <int Quad>
  static Ints bytes(Ints x) {
    return Quad == 0 ? bits_and(x, all_words(0x0f0f)) : bytes_right<4>(x);
  }
  static Vec scales(const uint8_t* group, int strip) {
    return load_halves(group + 256 + 2 * kLanes * strip);
  }
  static Vec minima(const uint8_t* group, int strip) {
    return load_halves(group + 288 + 2 * kLanes * strip);
  }
};

/// Scales and minima of 8 bits, in units of their output.
struct Int4InUnits : Int4 {
  static constexpr int64_t kGroupBytes = group_bytes(4, 8);
  static constexpr bool kUnits = true;

  static const uint8_t* group(const uint8_t* tile, int64_t g) { return tile + g * kGroupBytes; }

  static Vec scales(const uint8_t* group, int strip) {
    return to_float(wide_bytes(group + 256 + kLanes * strip));
  }
  static Vec minima(const uint8_t* group, int strip) {
    return to_float(wide_bytes(group + 272 + kLanes * strip)) * broadcast(kMinimumStep);
  }
  /// `units`: where those of a tile lie.
  static Vec units(const uint8_t* units, int strip) {
    return load_halves(units + 2 * kLanes * strip) * broadcast(kUnitStep);
  }
};

struct Int8 : PlainGroups<group_bytes(8)> {
  static constexpr bool kUnits = false;
  static constexpr bool kFromMemory = true;
  static constexpr int kVectors = 8;
  static constexpr bool kMinima = false;
  static constexpr int kOffset = 128;

  static Ints vector(const uint8_t* group, int strip, int v) {
    return load_ints(group + 64 * v + 4 * kLanes * strip);
  }
  template <int Pair>
  static Ints words(Ints x) {
    return Pair == 0 ? bits_and(x, all_words(255)) : words_right<8>(x);
  }
  template <int>
  static Ints bytes(Ints x) {
    return x;
  }
  static Vec scales(const uint8_t* group, int strip) {
    return load_halves(group + 512 + 2 * kLanes * strip);
  }
  static Vec minima(const uint8_t*, int) { return broadcast(0.0f); }
};

template <class W>
constexpr bool kIsBytes = false;  // whether a weight has `bytes`
template <>
constexpr bool kIsBytes<Int4> = true;
template <>
constexpr bool kIsBytes<Int4InUnits> = true;
template <>
constexpr bool kIsBytes<Int8> = true;

/// Whether two rows already share what is unpacked, as it costs more than to write it.
template <class W>
constexpr bool kUnpackedOnce = false;

/// The sum of the quants in one part of a row's group, which is number `at`.
template <class W, int Part>
inline int32_t quant_sum(const QuantRows& x, int64_t at) {
  const int32_t* const halves = x.half_sums + 2 * at;
  return W::kParts == 1 ? halves[0] + halves[1] : halves[Part];
}

/// Bytes of a tile.
template <class W>
constexpr int64_t tile_bytes_of(int64_t groups) {
  return groups * W::kGroupBytes + (W::kUnits ? unit_bytes(8) : 0);
}

/// Bytes of the scales and minima of a part in a Panel.
constexpr int64_t kPartFactors = 2 * sizeof(Vec);

/// A strip of a group in a Panel.
template <int Parts>
constexpr int64_t kPanelStrip = kPairs * sizeof(Ints) + Parts * kPartFactors;

/// Any of them unpacked: strip by strip 16 vectors of words, then scales and minima of each part as
/// floats.
template <int Parts, bool Minima>
struct Panel : PlainGroups<kStrips * kPanelStrip<Parts>> {
  static constexpr int64_t kWordBytes = kPairs * sizeof(Ints);
  static constexpr int64_t kStripBytes = kPanelStrip<Parts>;
  static constexpr int kParts = Parts;
  static constexpr bool kFromMemory = false;
  static constexpr int kVectors = kPairs;
  static constexpr bool kMinima = Minima;

  static Ints vector(const uint8_t* group, int strip, int v) {
    return load_ints(group + kStripBytes * strip + sizeof(Ints) * v);
  }
  template <int>
  static Ints words(Ints x) {
    return x;
  }
  static Vec scales(const uint8_t* group, int strip) {
    return load(reinterpret_cast<const float*>(group + kStripBytes * strip + kWordBytes));
  }
  static Vec minima(const uint8_t* group, int strip) {
    return load(reinterpret_cast<const float*>(group + kStripBytes * strip + kWordBytes) + kLanes);
  }
};

/// The same with 8 vectors of quads of bytes, which are Offset too large; with TAMIZ_I8MM every two
/// of them zipped, so that the quads of an output lie side by side.
template <int Parts, bool Minima, int Offset>
struct PanelOfBytes : Panel<Parts, Minima> {
  static constexpr int64_t kWordBytes = 8 * sizeof(Ints);
  static constexpr int64_t kStripBytes = kWordBytes + Parts * kPartFactors;
  static constexpr int64_t kGroupBytes = kStrips * kStripBytes;
  static constexpr int kVectors = 8;
  static constexpr int kOffset = Offset;
  static constexpr bool kPaired = kMatrices;

  static const uint8_t* group(const uint8_t* tile, int64_t g) { return tile + g * kGroupBytes; }
  static Ints vector(const uint8_t* group, int strip, int v) {
    return load_ints(group + kStripBytes * strip + sizeof(Ints) * v);
  }
  template <int>
  static Ints bytes(Ints x) {
    return x;
  }
  static Vec scales(const uint8_t* group, int strip) {
    return load(reinterpret_cast<const float*>(group + kStripBytes * strip + kWordBytes));
  }
  static Vec minima(const uint8_t* group, int strip) {
    return load(reinterpret_cast<const float*>(group + kStripBytes * strip + kWordBytes) + kLanes);
  }
};
template <int Parts, bool Minima, int Offset>
constexpr bool kIsBytes<PanelOfBytes<Parts, Minima, Offset>> = true;

/// What the bytes of W are too large by where they are multiplied: as signed ones they are what
/// they stand for, unless they are below 128 anyway.
#if defined(TAMIZ_DOT_SIGNED)
template <class W>
constexpr int kByteOffset = W::kOffset == 128 ? 0 : W::kOffset;
#else
template <class W>
constexpr int kByteOffset = W::kOffset;
#endif

/// What W is unpacked to for many rows.
template <class W, bool AsBytes = kRowsOfBytes && kIsBytes<W>>
struct PanelChoice {
  using Type = Panel<W::kParts, W::kMinima>;
};
template <class W>
struct PanelChoice<W, true> {
  using Type = PanelOfBytes<W::kParts, W::kMinima, kByteOffset<W>>;
};
template <class W>
using PanelFor = typename PanelChoice<W>::Type;

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
