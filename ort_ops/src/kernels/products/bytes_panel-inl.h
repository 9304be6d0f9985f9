// Groups of a tile as bytes, 8 times 64 bytes of quads of inputs, and their scales and minima as
// floats. Only with TAMIZ_DOT and AMX.
#pragma once

#include <stdint.h>

#include "kernels/products/matmul-inl.h"
#include "simd/target.h"

#if defined(TAMIZ_DOT)

namespace tamiz {
namespace TAMIZ_TARGET {

#if defined(TAMIZ_AMX)
constexpr int kPanelTiles = 1;  // signed bytes
constexpr int64_t kPanelGroups = 16;
#else
constexpr int kPanelTiles = kStrips == 1 ? 3 : kMatrices ? 2 : 1;  // kByteOffset<W> too large
constexpr int64_t kPanelGroups = 8;
#endif
/// Of a scale of every output; for products of matrices each is there twice, for two rows.
constexpr int kFactors = kMatrices ? 2 * kLanes : kLanes;

/// A strip of a group, whose quads are 64 bytes apart.
#if defined(TAMIZ_AMX)
template <class W, int Quad = 0>
inline void unpack_quads(Ints raw, uint8_t* to) {
  if constexpr (Quad < 8 / W::kVectors) {
    const Ints bytes = W::template bytes<Quad>(raw);
    constexpr int kOffset = W::kOffset;
    store_ints(to + 64 * Quad, kOffset ? bytes_minus(bytes, all_words(kOffset * 0x0101)) : bytes);
    unpack_quads<W, Quad + 1>(raw, to);
  }
}
template <class W>
TAMIZ_ALWAYS_INLINE void unpack_quads(const uint8_t* group, int strip, uint8_t* to) {
#pragma GCC unroll 8
  for (int v = 0; v < W::kVectors; ++v) {
    unpack_quads<W>(W::vector(group, strip, v), to + v * (8 / W::kVectors) * 64);
  }
}
#else
template <class W>
TAMIZ_ALWAYS_INLINE void unpack_quads(const uint8_t* group, int strip, uint8_t* to) {
#pragma GCC unroll 8
  for (int q = 0; q < 8; q += 2) store_quads<W>(group, strip, q, to + 64 * q, 64);
}
#endif

/// Outputs of some rows: what is added to, and where the sums go.
struct Outputs {
  const float* from;
  int64_t from_stride;
  float* to;
  int64_t to_stride;

  Outputs at(int64_t row, int64_t output) const {
    return {from + row * from_stride + output, from_stride, to + row * to_stride + output,
            to_stride};
  }
  /// What is added to them after that.
  Outputs again() const { return {to, to_stride, to, to_stride}; }
};

template <class W>
struct BytePanel {
  uint8_t quants[kPanelGroups][8 * 64];
  float factors[kPanelGroups][kStrips][W::kParts][2][kFactors];  // scales and minima

  /// `tile`: the first group; of a super-block its beginning.
  void unpack(const uint8_t* tile, int64_t groups) {
    Spread<W, 1> spread;
    const uint8_t* const tiles[1] = {tile};
    for (int64_t g = 0; g < groups; ++g) {
      if (W::kSuper && g % 8 == 0) spread.read(tiles, g);
      const uint8_t* const group = W::group(tile, g);
      for (int s = 0; s < kStrips; ++s) {
        unpack_quads<W>(group, s, quants[g] + 4 * kLanes * s);
        unpack_factors<W, kFactors>(group, spread, g, s, factors[g][s][0][0]);
      }
    }
  }
};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
