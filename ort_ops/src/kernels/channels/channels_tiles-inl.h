// A panel of kernels/channels/channels.h as tiles of kernels/products/packing.h.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/channels/channels.h"
#include "simd/simd_int.h"

#if defined(TAMIZ_VECTORS)

namespace tamiz {
namespace TAMIZ_TARGET {

/// 32 bytes.
#if defined(TAMIZ_AVX512)
using Bytes32 = __m256i;
inline Bytes32 load_32(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline void store_32(uint8_t* p, Bytes32 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x);
}
inline Bytes32 low_bytes(Bytes32 a, Bytes32 b) { return _mm256_unpacklo_epi8(a, b); }
inline Bytes32 high_bytes(Bytes32 a, Bytes32 b) { return _mm256_unpackhi_epi8(a, b); }
inline Bytes32 low_words(Bytes32 a, Bytes32 b) { return _mm256_unpacklo_epi16(a, b); }
inline Bytes32 high_words(Bytes32 a, Bytes32 b) { return _mm256_unpackhi_epi16(a, b); }
inline Bytes32 low_nibbles_of(Bytes32 a, Bytes32 b) {
  const Bytes32 nibble = _mm256_set1_epi8(15);
  return _mm256_or_si256(_mm256_and_si256(a, nibble),
                         _mm256_slli_epi16(_mm256_and_si256(b, nibble), 4));
}
inline Bytes32 high_nibbles_of(Bytes32 a, Bytes32 b) {
  const Bytes32 nibble = _mm256_set1_epi8(15);
  return _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 4), nibble),
                         _mm256_andnot_si256(nibble, b));
}
#else
using Bytes32 = Ints;
inline Bytes32 load_32(const uint8_t* p) { return load_ints(p); }
inline void store_32(uint8_t* p, Bytes32 x) { store_ints(p, x); }
/// Of a in the low half of every byte, of b in the high one.
inline Bytes32 low_nibbles_of(Bytes32 a, Bytes32 b) {
  const Bytes32 nibble = all_words(0x0f0f);
  return bits_or(bits_and(a, nibble), words_left<4>(bits_and(b, nibble)));
}
inline Bytes32 high_nibbles_of(Bytes32 a, Bytes32 b) {
  return bits_or(bits_and(words_right<4>(a), all_words(0x0f0f)), bits_and(b, all_words(-0x0f10)));
}
#endif

/// 32 bytes of eight records, one of every stream, as vectors of tiles: low and high nibbles of
/// four quads of bytes.
inline void transpose(const uint8_t* records, int64_t stream, Bytes32 (&low)[4],
                      Bytes32 (&high)[4]) {
  Bytes32 quads[2][4];
  for (int half = 0; half < 2; ++half) {
    Bytes32 r[4];
    for (int i = 0; i < 4; ++i, records += stream) {
      r[i] = load_32(records);
    }
    const Bytes32 ab[] = {low_bytes(r[0], r[1]), high_bytes(r[0], r[1])};
    const Bytes32 cd[] = {low_bytes(r[2], r[3]), high_bytes(r[2], r[3])};
    for (int j = 0; j < 2; ++j) {
      quads[half][2 * j] = low_words(ab[j], cd[j]);
      quads[half][2 * j + 1] = high_words(ab[j], cd[j]);
    }
  }
  for (int j = 0; j < 4; ++j) {
    low[j] = low_nibbles_of(quads[0][j], quads[1][j]);
    high[j] = high_nibbles_of(quads[0][j], quads[1][j]);
  }
}

inline void channels_to_tiles(const uint8_t* panel, const PanelLayout& layout, uint8_t* tiles) {
  const int64_t outputs = layout.outputs, record_bytes = layout.record_bytes();
  const int64_t tile_size = tile_bytes(layout.groups, 4, layout.scale_bits);
  for (int64_t g = 0; g < layout.groups; ++g) {
    uint8_t* const to = tiles + g * group_bytes(4, layout.scale_bits);
    for (int64_t v = 0; v < kGroup / 8; ++v) {
      for (int64_t part = 0; part < record_bytes; part += 32) {
        Bytes32 low[4], high[4];
        transpose(panel + layout.record(g, 8 * v) + part, layout.stream_bytes(), low, high);
        for (int j = 0; j < 4; ++j) {
          if (outputs == kPanel) {  // 16 outputs in two parts, a tile a nibble
            store_32(to + 2 * j * tile_size + 64 * v + part, low[j]);
            store_32(to + (2 * j + 1) * tile_size + 64 * v + part, high[j]);
          } else {  // 8 outputs, half a tile a nibble
            store_32(to + j * tile_size + 64 * v, low[j]);
            store_32(to + j * tile_size + 64 * v + 32, high[j]);
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
