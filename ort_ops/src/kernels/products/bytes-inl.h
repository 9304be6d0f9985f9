// y[r,o] += xs[r,g] ws[o,g] (sum_i xq[r,g,i] wq[o,g,i]) + xsum[r,g] wmin[o,g]     quants of 8 bits
//
// Many rows: some groups of a tile are unpacked to bytes into a panel in the L1 cache, or, of some
// rows with AVX-512 alone, a group of two tiles into registers, then all rows pass over them. A
// group of a tile is 8 quads of inputs for 16 outputs, 64 bytes each: what VPDPBUSD and SDOT take,
// and a tile of AMX. Scales are applied to the sums of each group.
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
#include "kernels/products/bytes_held-inl.h"
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
  for (int64_t g = 0; g * kGroup < k; ++g) {
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

/// Tiles whose outputs of a row are written together, some panels.
constexpr int kOutputTiles = kPanelTiles < 3 ? 4 : kPanelTiles;

/// Prefetches where a block of rows is written to.
inline void prefetch_outputs(const float* y, int64_t y_stride, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int t = 0; t < kOutputTiles; ++t) {
      prefetch(reinterpret_cast<const uint8_t*>(y + r * y_stride + t * kTile));
    }
  }
}

/// All rows times kOutputTiles tiles from tile `first` on, by panels of some of their groups.
template <class W>
class PanelProduct {
 public:
  PanelProduct(const MultiplyArgs& a, const ByteRows& x, int64_t first)
      : a_(a), x_(x), tiles_(a, first), there_(least(kOutputTiles, a.tiles - first)) {
    tiles_.start(start_);
  }
  void multiply() {
    for (int64_t g = 0; g < x_.groups; g += kPanelGroups) {
      for (int64_t t = 0; t < there_; t += kPanelTiles) multiply(g, t);
    }
  }

 private:
  static constexpr int64_t kStride = kOutputTiles * kTile;

  /// kPanelTiles of the tiles, from `t` on, and the groups from `g` on.
  void multiply(int64_t g, int64_t t) {
    const int64_t groups = least(x_.groups - g, kPanelGroups);
    const bool last = g + groups == x_.groups && t + kPanelTiles >= there_;
    for (int p = 0; p < kPanelTiles; ++p) {
      panel_[p].unpack(tiles_.at[t + p] + g * W::kGroupBytes, groups);
    }
    Coming<kPanelTiles> coming = next(g, t);
    for (int64_t r = 0; r < a_.rows; r += kByteRows) {
      coming.fetch();
      const int64_t rows = least(a_.rows - r, kByteRows);
      float* const to = tiles_.y + r * a_.y_stride;
      if (last) prefetch_outputs(to, a_.y_stride, rows);
      const bool direct = last && rows == kByteRows && kDirect && tiles_.outputs == kStride;
      Outputs y{y_[r], kStride, y_[r], kStride};
      if (g == 0) y = {start_, 0, y_[r], kStride};
      if (direct) y = {y.from, y.from_stride, to, a_.y_stride};
      add_block<W>(panel_, x_, x_.at(a_.first_row + r, g), groups, rows, y.at(0, t * kTile));
      if (!last || direct) continue;
      for (int64_t i = 0; i < rows; ++i) tiles_.finish(y_[r + i], to + i * a_.y_stride);
    }
  }

  /// Whether sums of all groups are outputs, in order.
  static constexpr bool kDirect = kPanelTiles == kOutputTiles && !W::kUnits;

  /// What is unpacked after tiles `t` and groups `g`: other tiles' groups g, all tiles' groups
  /// after them, or where the next tiles begin.
  Coming<kPanelTiles> next(int64_t g, int64_t t) const {
    const bool others = t + kPanelTiles < there_;
    const int64_t later = others ? g : g + kPanelGroups;
    const bool last = later >= x_.groups;
    const uint8_t* at[kPanelTiles];
    for (int p = 0; p < kPanelTiles; ++p) {
      at[p] = tiles_.at[others ? t + kPanelTiles + p : p] +
              (last ? kOutputTiles * tile_bytes_of<W>(x_.groups) : later * W::kGroupBytes);
    }
    const int64_t groups = least(x_.groups - (last ? 0 : later), kPanelGroups);
    return {at, groups * W::kGroupBytes, whole_blocks(a_.rows) / kByteRows};
  }

  const MultiplyArgs& a_;
  const ByteRows& x_;
  const Tiles<W, kOutputTiles> tiles_;
  const int64_t there_;
  alignas(64) BytePanel<W> panel_[kPanelTiles];
  alignas(64) float start_[kStride];             // what the outputs of every row begin with
  alignas(64) float y_[kByteRowBlock][kStride];  // sums with the groups so far
};

template <class W>
inline void multiply_panels(const MultiplyArgs& a, const ByteRows& x) {
  for (int64_t t = 0; t < a.tiles; t += kOutputTiles) PanelProduct<W>(a, x, t).multiply();
}

#if defined(TAMIZ_FEW_BYTE_ROWS)

constexpr int64_t kFewestRows = 1, kManyRows = kMostPassing + 1;

template <class W>
inline void multiply_bytes(const MultiplyArgs& a, const ByteRows& x) {
  constexpr int kFew = kUnpackedOnce<W> ? 1 : kFewByteRows;
  if (a.rows <= kFew) return few_byte_rows<W, kFew>(a, x);
  if (a.rows <= kMostPassing) return multiply_passes<W>(a, x);
  multiply_panels<W>(a, x);
}

#else

constexpr int64_t kFewestRows = kByteRows, kManyRows = kByteRows;

template <class W>
inline void multiply_bytes(const MultiplyArgs& a, const ByteRows& x) {
  multiply_panels<W>(a, x);
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
    case Format::nvfp4:
      return multiply_bytes<Planar<Format::nvfp4>>(a, x);
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

constexpr ByteKernels byte_kernels = {kFewestRows, kManyRows, kOutputTiles, quantize_rows,
                                      multiply_rows};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
