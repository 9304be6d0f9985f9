// Groups of a tile as bytes, 8 vectors of quads of inputs, and their scales and minima as floats.
// Only for AVX-512 and AMX.
#pragma once

#include <stdint.h>

#include "kernels/products/matmul-inl.h"
#include "simd/target.h"

#if defined(TAMIZ_AVX512)

namespace tamiz {
namespace TAMIZ_TARGET {

#if defined(TAMIZ_AMX)
constexpr bool kSignedBytes = true;
constexpr int kPanelTiles = 1;
constexpr int64_t kPanelGroups = 16;
#else
constexpr bool kSignedBytes = false;  // as VPDPBUSD takes them: W::kOffset too large
constexpr int kPanelTiles = 4;
constexpr int64_t kPanelGroups = 8;
#endif

template <class W, int Quad = 0>
inline void unpack_quads(Ints raw, uint8_t* to) {
  if constexpr (Quad < 8 / W::kVectors) {
    const Ints bytes = W::template bytes<Quad>(raw);
    constexpr int kOffset = kSignedBytes ? W::kOffset : 0;
    store_ints(to + 64 * Quad, kOffset ? bytes_minus(bytes, all_words(kOffset * 0x0101)) : bytes);
    unpack_quads<W, Quad + 1>(raw, to);
  }
}

template <class W>
struct BytePanel {
  uint8_t quants[kPanelGroups][8 * 64];
  float factors[kPanelGroups][W::kParts][2][kTile];  // scales and minima

  /// `tile`: the first group; of a super-block its beginning.
  void unpack(const uint8_t* tile, int64_t groups) {
    Spread<W, 1> spread;
    const uint8_t* const tiles[1] = {tile};
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t i = 0; i < W::kGroupBytes; i += 64) {
        prefetch_stream(tile + (g + groups) * W::kGroupBytes + i);
      }
      if (W::kSuper && g % 8 == 0) spread.read(tiles, g);
      const uint8_t* const group = W::group(tile, g);
#pragma GCC unroll 8
      for (int v = 0; v < W::kVectors; ++v) {
        unpack_quads<W>(W::vector(group, 0, v), quants[g] + v * (8 / W::kVectors) * 64);
      }
      unpack_factors<W>(group, spread, g, 0, factors[g][0][0]);
    }
  }
};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
