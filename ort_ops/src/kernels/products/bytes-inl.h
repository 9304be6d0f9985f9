// y[r,o] += xs[r,g] ws[o,g] (sum_i xq[r,g,i] wq[o,g,i]) + xsum[r,g] wmin[o,g]     quants of 8 bits
//
// Many rows: some groups of a tile are unpacked to bytes into a panel in the L1 cache, or with
// AVX-512 alone a group of two tiles into registers, then all rows pass over them. A group of a
// tile is 8 quads of inputs for 16 outputs, 64 bytes each: what VPDPBUSD and SDOT take, and a tile
// of AMX. Scales are applied to the sums of each group.
//
// Only with TAMIZ_DOT and AMX (kernels/level_bytes.cc).
#pragma once

#include <stdint.h>

#include "kernels/products/bytes.h"
#include "kernels/products/matmul-inl.h"
#include "simd/target.h"

#if defined(TAMIZ_DOT)
#if defined(TAMIZ_AMX)
#include "kernels/products/bytes_amx-inl.h"
#elif defined(TAMIZ_I8MM)
#include "kernels/products/bytes_matrices-inl.h"
#else
#include "kernels/products/bytes_dot-inl.h"
#endif
#include "kernels/products/bytes_few-inl.h"
#include "kernels/products/bytes_panel-inl.h"
#include "kernels/products/bytes_pass-inl.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// Where the quants of a row of a block lie; kLanes of them, then others after kQuantsStep. For
/// products of matrices the quants of two rows alternate.
constexpr int64_t kQuantsStep = kMatrices ? 2 * kLanes : kLanes;
constexpr int64_t quants_at(int64_t row) {
  return kMatrices ? row / 2 * 2 * kGroup + row % 2 * kLanes : row * kGroup;
}

#if defined(TAMIZ_AVX512)

/// The sums of the first and of the last 16 of 32 signed bytes.
inline void sum_half_bytes(__m256i bytes, int32_t* first, int32_t* last) {
  const __m256i fours = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
  __m256i sum = _mm256_add_epi32(fours, _mm256_shuffle_epi32(fours, 0x4e));
  sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0xb1));
  *first = _mm256_cvtsi256_si32(sum);
  *last = _mm_cvtsi128_si32(_mm256_extracti128_si256(sum, 1));
}

/// Rounds a group of a row, whose quants go to `to` and their half sums to `first` and `last`.
inline void quantize_group(const GroupInputs& inputs, Vec inverse, int8_t* to, int32_t* first,
                           int32_t* last) {
  const __m256i bytes = _mm256_set_m128i(_mm512_cvtepi32_epi8(to_ints(inputs.v[1] * inverse)),
                                         _mm512_cvtepi32_epi8(to_ints(inputs.v[0] * inverse)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes);
  sum_half_bytes(bytes, first, last);
}

#else

inline void quantize_group(const GroupInputs& inputs, Vec inverse, int8_t* to, int32_t* first,
                           int32_t* last) {
  Ints quants[GroupInputs::kVecs];
  for (int i = 0; i < GroupInputs::kVecs; ++i) {
    quants[i] = to_ints(inputs.v[i] * inverse);
    store_low_bytes(to + i * kQuantsStep, quants[i]);
  }
  *first = sum_ints(ints_plus(quants[0], quants[1]));
  *last = sum_ints(ints_plus(quants[2], quants[3]));
}

#endif

inline void quantize_rows(const float* x, int64_t k, const uint8_t* mask, int64_t block,
                          const ByteRows& to, int64_t row) {
  const int64_t in_block = row % kByteRows;
  for (int64_t g = 0; g < to.groups; ++g) {
    const int64_t at = to.at(row, g);
    const GroupInputs inputs(x, k, mask, block, g);
    Vec inverse;
    to.scales[at * kByteRows + in_block] = inputs.scale<kLargestByte>(&inverse);
    int8_t* const quants = to.quants + at * kByteRows * kGroup + quants_at(in_block);
    int32_t* const sums = to.half_sums + 2 * at * kByteRows + in_block;
    quantize_group(inputs, inverse, quants, sums, sums + kByteRows);
    for (int64_t r = in_block + 1; row + 1 == to.rows && r < kByteRows; ++r) {
      to.scales[at * kByteRows + r] = 0.0f;  // rows that are not there count nothing
    }
  }
}

#if defined(TAMIZ_FEW_BYTE_ROWS)

constexpr int64_t kFewestRows = 1;

template <class W>
inline void multiply_bytes(const MultiplyArgs& a, const ByteRows& x) {
  constexpr int kFew = kUnpackedOnce<W> ? 1 : kFewByteRows;
  if (a.rows <= kFew) return few_byte_rows<W, kFew>(a, x);
  multiply_passes<W>(a, x);
}

#else

constexpr int64_t kFewestRows = kByteRows;

/// Tiles whose outputs of a row are written together.
constexpr int kOutputTiles = 4;

/// Prefetches where a block of rows is written to.
inline void prefetch_outputs(const float* y, int64_t y_stride, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int t = 0; t < kOutputTiles; ++t) {
      prefetch(reinterpret_cast<const uint8_t*>(y + r * y_stride + t * kTile));
    }
  }
}

template <class W>
inline void multiply_bytes(const MultiplyArgs& a, const ByteRows& x) {
  constexpr int64_t kStride = kOutputTiles * kTile;
  alignas(64) BytePanel<W> panel[kPanelTiles];
  alignas(64) float y[kByteRowBlock][kStride];
  for (int64_t t = 0; t < a.tiles; t += kOutputTiles) {
    const Tiles<W, kOutputTiles> tiles(a, t);
    const int there = static_cast<int>(least(kOutputTiles, a.tiles - t));
    for (int64_t r = 0; r < whole_blocks(a.rows); ++r) tiles.start(y[r]);
    for (int64_t g = 0; g < x.groups; g += kPanelGroups) {
      const int64_t groups = least(x.groups - g, kPanelGroups);
      const bool last_groups = g + groups == x.groups;
      for (int i = 0; i < there; i += kPanelTiles) {
        const bool last = last_groups && i + kPanelTiles >= there;
        for (int p = 0; p < kPanelTiles; ++p) {
          panel[p].unpack(tiles.at[i + p] + g * W::kGroupBytes, groups);
        }
        for (int64_t r = 0; r < a.rows; r += kByteRows) {
          const int64_t rows = least(a.rows - r, kByteRows);
          float* const to = tiles.y + r * a.y_stride;
          if (last) prefetch_outputs(to, a.y_stride, rows);
          add_block<W>(panel, x, x.at(a.first_row + r, g), groups, rows, y[r] + i * kTile, kStride);
          for (int64_t n = 0; last && n < rows; ++n) tiles.finish(y[r + n], to + n * a.y_stride);
        }
      }
    }
  }
}

#endif

inline void multiply_planes(const MultiplyArgs& a, const ByteRows& x) {
  switch (a.format) {
    case Format::q4_0:
      return multiply_bytes<Planar<Format::q4_0>>(a, x);
    case Format::q5_0:
      return multiply_bytes<Planar<Format::q5_0>>(a, x);
    case Format::q5_1:
      return multiply_bytes<Planar<Format::q5_1>>(a, x);
    case Format::iq4_nl:
      return multiply_bytes<Planar<Format::iq4_nl>>(a, x);
    case Format::mxfp4:
      return multiply_bytes<Planar<Format::mxfp4>>(a, x);
    case Format::q2_k:
      return multiply_bytes<Planar<Format::q2_k>>(a, x);
    case Format::q3_k:
      return multiply_bytes<Planar<Format::q3_k>>(a, x);
    case Format::q4_k:
      return multiply_bytes<Planar<Format::q4_k>>(a, x);
    case Format::q5_k:
      return multiply_bytes<Planar<Format::q5_k>>(a, x);
    case Format::q6_k:
      return multiply_bytes<Planar<Format::q6_k>>(a, x);
    case Format::iq4_xs:
      return multiply_bytes<Planar<Format::iq4_xs>>(a, x);
    case Format::tq2_0:
      return multiply_bytes<Planar<Format::tq2_0>>(a, x);
    case Format::iq1_s:
      return multiply_bytes<Planar<Format::iq1_s>>(a, x);
    case Format::iq1_m:
      return multiply_bytes<Planar<Format::iq1_m>>(a, x);
    case Format::iq2_xxs:
      return multiply_bytes<Planar<Format::iq2_xxs>>(a, x);
    case Format::iq2_xs:
      return multiply_bytes<Planar<Format::iq2_xs>>(a, x);
    case Format::iq2_s:
      return multiply_bytes<Planar<Format::iq2_s>>(a, x);
    case Format::iq3_xxs:
      return multiply_bytes<Planar<Format::iq3_xxs>>(a, x);
    case Format::iq3_s:
      return multiply_bytes<Planar<Format::iq3_s>>(a, x);
    default:
      return;  // integers; f16 and bf16 have no quants
  }
}

inline void multiply_rows(const MultiplyArgs& a, const ByteRows& x) {
  const Unit unit(a);
  if (a.format != Format::integers) return multiply_planes(a, x);
  if (a.bits == 8) return multiply_bytes<Int8>(a, x);
  if (a.scale_bits == 8) return multiply_bytes<Int4InUnits>(a, x);
  multiply_bytes<Int4>(a, x);
}

constexpr ByteKernels byte_kernels = {kFewestRows, quantize_rows, multiply_rows};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
