// A panel of kernels/channels/channels.h as tiles of kernels/products/packing.h.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/channels/channels.h"
#include "simd/simd_int.h"

#if defined(TAMIZ_AVX512) || defined(TAMIZ_AVX2)

namespace tamiz {
namespace TAMIZ_TARGET {

/// 32 bytes of eight records, one of every stream, as vectors of tiles: low and high nibbles of
/// four quads of bytes.
inline void transpose(const uint8_t* records, int64_t stream, __m256i (&low)[4],
                      __m256i (&high)[4]) {
  const __m256i nibble = _mm256_set1_epi8(15);
  __m256i quads[2][4];
  for (int half = 0; half < 2; ++half) {
    __m256i r[4];
    for (int i = 0; i < 4; ++i, records += stream) {
      r[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(records));
    }
    const __m256i ab[] = {_mm256_unpacklo_epi8(r[0], r[1]), _mm256_unpackhi_epi8(r[0], r[1])};
    const __m256i cd[] = {_mm256_unpacklo_epi8(r[2], r[3]), _mm256_unpackhi_epi8(r[2], r[3])};
    for (int j = 0; j < 2; ++j) {
      quads[half][2 * j] = _mm256_unpacklo_epi16(ab[j], cd[j]);
      quads[half][2 * j + 1] = _mm256_unpackhi_epi16(ab[j], cd[j]);
    }
  }
  for (int j = 0; j < 4; ++j) {
    const __m256i a = quads[0][j];
    const __m256i b = quads[1][j];
    low[j] = _mm256_or_si256(_mm256_and_si256(a, nibble),
                             _mm256_slli_epi16(_mm256_and_si256(b, nibble), 4));
    high[j] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 4), nibble),
                              _mm256_andnot_si256(nibble, b));
  }
}

inline void channels_to_tiles(const uint8_t* panel, const PanelLayout& layout, uint8_t* tiles) {
  const int64_t outputs = layout.outputs, record_bytes = layout.record_bytes();
  const int64_t tile_size = tile_bytes(layout.groups, 4, layout.scale_bits);
  const auto write = [](uint8_t* to, __m256i x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x);
  };
  for (int64_t g = 0; g < layout.groups; ++g) {
    uint8_t* const to = tiles + g * group_bytes(4, layout.scale_bits);
    for (int64_t v = 0; v < kGroup / 8; ++v) {
      for (int64_t part = 0; part < record_bytes; part += 32) {
        __m256i low[4], high[4];
        transpose(panel + layout.record(g, 8 * v) + part, layout.stream_bytes(), low, high);
        for (int j = 0; j < 4; ++j) {
          if (outputs == kPanel) {  // 16 outputs in two parts, a tile a nibble
            write(to + 2 * j * tile_size + 64 * v + part, low[j]);
            write(to + (2 * j + 1) * tile_size + 64 * v + part, high[j]);
          } else {  // 8 outputs, half a tile a nibble
            write(to + j * tile_size + 64 * v, low[j]);
            write(to + j * tile_size + 64 * v + 32, high[j]);
          }
        }
      }
    }
  }
  copy_factors(panel, layout, tiles);
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
