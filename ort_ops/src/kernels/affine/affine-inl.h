// y[o] = bias[o] + sum_b ( scale xs (sum_i xq (wq - offset)) + scale (offset - zero) xsum )
//
// One or two rows: weights are unpacked in registers, as a decoder reads them. One row is
// multiplied as bytes where the level can (kernels/products/matmul_bytes-inl.h). More rows share
// what is unpacked: 8 groups of some tiles become the panel of
// kernels/products/matmul_weights-inl.h.
//
// Only for kernels/level_affine.cc: its functions are not inline.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/affine/affine.h"
#include "simd/target.h"
#if defined(TAMIZ_SCALAR)
#include "kernels/products/matmul_scalar-inl.h"
#else
#include "kernels/products/matmul-inl.h"
#endif

namespace tamiz {
namespace TAMIZ_TARGET {

#if defined(TAMIZ_SCALAR)

/// The product as its equation reads.
inline float affine_output(const MultiplyArgs& a, const Affine& affine, int64_t row,
                           int64_t output) {
  const int64_t groups = a.x.groups, o = output % kTile;
  const uint8_t* const tile = a.weight + output / kTile * affine.tile_bytes(groups);
  const int64_t parts = affine.parts ? 2 : 1, inputs = kGroup / parts;
  float y = a.bias ? a.bias[output] : 0.0f;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t at = a.x.at(a.first_row + row, g);
    if (a.skip && a.x.kept[at] == 0) continue;
    const uint8_t* const planes = tile + g * affine.plane_bytes();
    for (int64_t part = 0; part < parts; ++part) {
      int32_t sum = 0, x_sum = 0;
      for (int64_t i = part * inputs; i < (part + 1) * inputs; ++i) {
        const int x = a.x.quants[at * kGroup + place(i)];
        sum += x * (affine_quant(affine, planes, o, i) - affine.offset());
        x_sum += x;
      }
      const ScaleAndZero found = affine_factors(affine, tile, groups, g, part, o);
      const float minimum = found.scale * (static_cast<float>(affine.offset()) - found.zero);
      y = fmaf(static_cast<float>(sum) * a.x.scales[at], found.scale, y);
      if (affine.zero == Affine::none) continue;
      y = fmaf(a.x.scales[at] * static_cast<float>(x_sum), minimum, y);
    }
  }
  return y;
}

inline void multiply_affine(const MultiplyArgs& a, const Affine& affine) {
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t output = 0; output < a.outputs; ++output) {
      a.y[r * a.y_stride + output] = affine_output(a, affine, r, output);
    }
  }
}

#else

/// The planes of a group, as `sum_part` and `unpack_strip` read a weight.
template <int Bits, int Parts>
struct AffinePlanes : PlainGroups<kGroup * kTile * Bits / 8> {
  static constexpr int kParts = Parts;
  static constexpr int kVectors = 8;
  static constexpr bool kMinima = true;
  static constexpr int kOffset = 1 << (Bits - 1);

  static Ints vector(const uint8_t* planes, int strip, int v) {
    return field<Bits, 0>(planes + 4 * kLanes * strip, v);
  }
  template <int Pair>
  static Ints words(Ints x) {
    return Pair == 0 ? bits_and(x, all_words(255)) : words_right<8>(x);
  }
  template <int>
  static Ints bytes(Ints x) {
    return x;
  }
};
template <int Bits, int Parts>
constexpr bool kIsBytes<AffinePlanes<Bits, Parts> > = true;

/// Scales and minima of blocks of tiles.
struct AffineFactors {
  const Affine& affine;
  const int64_t first;  // where they begin in a tile
  const int64_t block_bytes;

  AffineFactors(const Affine& of, int64_t groups)
      : affine(of), first(groups * of.plane_bytes()), block_bytes(of.block_bytes()) {}

  /// Where those of a part of group `g` begin in a tile.
  int64_t at(int64_t g, int part) const { return first + affine.block(g, part) * block_bytes; }

  /// Those of T tiles, strip by strip. Asks for the kinds once for all strips, as jumps in between
  /// take longer than loads. Without zero points `minimum` is left as it is.
  template <int T>
  TAMIZ_ALWAYS_INLINE void read(const uint8_t* const (&tile)[T], int64_t g, int part,
                                Vec (&scale)[T * kStrips], Vec (&minimum)[T * kStrips]) const {
    const int64_t scales = at(g, part), zeros = scales + affine.scale_bytes();
    const Vec offset = broadcast(static_cast<float>(affine.offset()));
    const auto each = [&](int64_t from, int64_t size, auto&& take) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int s = 0; s < T * kStrips; ++s) {
        take(s, tile[s / kStrips] + from + s % kStrips * kLanes * size);
      }
    };
    if (affine.halves) {
      each(scales, 2, [&](int s, const uint8_t* p) { scale[s] = load_halves(p); });
    } else {
      each(scales, 4, [&](int s, const uint8_t* p) { scale[s] = floats(p); });
    }
    if (affine.zero == Affine::bytes) {
      each(zeros, 1, [&](int s, const uint8_t* p) {
        minimum[s] = scale[s] * (offset - to_float(wide_bytes(p)));
      });
    } else if (affine.zero == Affine::floats) {
      each(zeros, 4,
           [&](int s, const uint8_t* p) { minimum[s] = scale[s] * (offset - floats(p)); });
    }
  }

 private:
  static Vec floats(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
};

/// T tiles from tile `first` on; past the end the last one again.
template <int T>
struct AffineTiles {
  const uint8_t* at[T];
  int64_t outputs;  // that exist
  const float* bias;
  float* y;

  AffineTiles(const MultiplyArgs& a, int64_t first, int64_t tile_bytes)
      : outputs(least(a.outputs - first * kTile, T * kTile)),
        bias(a.bias ? a.bias + first * kTile : nullptr),
        y(a.y + first * kTile) {
    for (int t = 0; t < T; ++t) at[t] = a.weight + least(first + t, a.tiles - 1) * tile_bytes;
  }
  size_t bytes() const { return static_cast<size_t>(outputs) * sizeof(float); }
  void start(float* row) const {
    memset(row, 0, T * kTile * sizeof(float));
    if (bias) memcpy(row, bias, bytes());
  }
  void finish(const float* row, float* to) const { memcpy(to, row, bytes()); }
};

/// total[r][s] += one part of a group of R rows.
template <class W, int R, int T, int Part = 0>
TAMIZ_ALWAYS_INLINE void add_affine(Vec (&total)[R][T * kStrips], const uint8_t* const (&tile)[T],
                                    const uint8_t* const (&group)[T], const AffineFactors& factors,
                                    const QuantRows& x, int64_t at, int64_t g,
                                    const SplitRows<R>& bytes) {
  if constexpr (Part < W::kParts) {
    constexpr int S = T * kStrips;
    Ints sum[R][S];
    sum_part<W, R, T, Part>(sum, group, x, at, bytes);
    float x_sum[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      x_sum[r] = x.scales[at + r] * static_cast<float>(quant_sum<W, Part>(x, at + r));
    }
    Vec scale[S], minimum[S];
    factors.read<T>(tile, g, Part, scale, minimum);
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        total[r][s] = fma(to_float(sum[r][s]) * broadcast(x.scales[at + r]), scale[s], total[r][s]);
      }
    }
    if (factors.affine.zero != Affine::none) {
#pragma GCC unroll 8
      for (int s = 0; s < S; ++s) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) total[r][s] = fma(broadcast(x_sum[r]), minimum[s], total[r][s]);
      }
    }
    add_affine<W, R, T, Part + 1>(total, tile, group, factors, x, at, g, bytes);
  }
}

/// Prefetches a group some groups on, or where the next T tiles begin, and what scales it.
template <class W, int T>
TAMIZ_ALWAYS_INLINE void prefetch_affine(const uint8_t* const (&tile)[T],
                                         const AffineFactors& factors, int64_t g, int64_t groups,
                                         int64_t next) {
  const bool here = g + kAhead < groups;
  const int64_t ahead = here ? g + kAhead : least(g + kAhead - groups, groups - 1);
  const int64_t planes = (here ? 0 : next) + ahead * W::kGroupBytes;
  const int64_t block = (here ? 0 : next) + factors.at(ahead, 0);
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int64_t i = 0; i < W::kGroupBytes; i += 64) prefetch_stream(tile[t] + planes + i);
    prefetch_stream(tile[t] + block);
    prefetch_stream(tile[t] + block + W::kParts * factors.block_bytes - 1);
  }
}

/// R rows, weights straight from the tiles; groups without a kept input are not read.
template <class W, int R>
inline void affine_few(const MultiplyArgs& a, const Affine& affine) {
  constexpr int T = (2 * R * (R == 1 ? 1 : W::kParts) <= kRowRegisters ? 4 : 2) / kStrips;
  constexpr int S = T * kStrips;
  const int64_t groups = a.x.groups, together = a.x.together(a.first_row);
  const int64_t size = affine.tile_bytes(groups);
  const AffineFactors factors(affine, groups);
  for (int64_t t = 0; t < a.tiles; t += T) {
    const AffineTiles<T> tiles(a, t, size);
    alignas(64) float y[R][T * kTile];
    Vec total[R][S];
    for (int r = 0; r < R; ++r) {
      tiles.start(y[r]);
      for (int s = 0; s < S; ++s) total[r][s] = load(y[r] + s * kLanes);
    }
    int64_t at = a.x.at(a.first_row, 0);
    for (int64_t g = 0; g < groups; ++g, at += together) {
      if (a.skip && a.x.kept[at] == 0) continue;
      if (!a.skip) prefetch_affine<W, T>(tiles.at, factors, g, groups, T * size);
      const uint8_t* group[T];
      for (int i = 0; i < T; ++i) group[i] = W::group(tiles.at[i], g);
      alignas(64) int8_t bytes[R][2 * kGroup];
      if constexpr (kByBytes<W, R>) split_rows<W>(a.x.quants + at * kGroup, bytes);
      add_affine<W, R, T>(total, tiles.at, group, factors, a.x, at, g, SplitRows<R>{bytes});
    }
    for (int r = 0; r < R; ++r) {
      for (int s = 0; s < S; ++s) store(y[r] + s * kLanes, total[r][s]);
      tiles.finish(y[r], tiles.y + r * a.y_stride);
    }
  }
}

/// `groups` groups of a tile from group `first` on, unpacked into a panel.
template <class W>
inline void unpack_affine(const uint8_t* tile, const AffineFactors& factors, int64_t first,
                          int64_t groups, uint8_t* panel) {
  const uint8_t* const tiles[1] = {tile};
  for (int64_t g = first; g < first + groups; ++g, panel += PanelFor<W>::kGroupBytes) {
    for (int strip = 0; strip < kStrips; ++strip) {
      unpack_strip<W>(W::group(tile, g), strip, panel + strip * PanelFor<W>::kStripBytes);
    }
    for (int part = 0; part < W::kParts; ++part) {
      Vec scale[kStrips], minimum[kStrips];
      for (Vec& none : minimum) none = broadcast(0.0f);
      factors.read<1>(tiles, g, part, scale, minimum);
      for (int strip = 0; strip < kStrips; ++strip) {
        uint8_t* const at = panel + strip * PanelFor<W>::kStripBytes + PanelFor<W>::kWordBytes;
        float* const to = reinterpret_cast<float*>(at) + part * 2 * kLanes;
        store(to, scale[strip]);
        store(to + kLanes, minimum[strip]);
      }
    }
  }
}

/// y[r] += some unpacked groups, up to R rows from `row` on.
template <class P, int T, int R = kRowRegisters>
inline void multiply_panel(const uint8_t* const (&panels)[T], const MultiplyArgs& a, int64_t row,
                           int64_t rows, int64_t first, int64_t groups, float* y) {
  if (rows < R) {
    if constexpr (R > 1) multiply_panel<P, T, R - 1>(panels, a, row, rows, first, groups, y);
    return;
  }
  multiply_block<P, R, T>(panels, panels, a.x, a.first_row + row, first, groups, y);
}

template <class W>
inline void affine_rows(const MultiplyArgs& a, const Affine& affine) {
  constexpr int T = 2 / kStrips;
  constexpr int64_t kMost = 8;
  const AffineFactors factors(affine, a.x.groups);
  alignas(64) uint8_t panel[T][kMost * PanelFor<W>::kGroupBytes];
  alignas(64) float y[kRowBlock][T * kTile];
  const uint8_t* panels[T];
  for (int i = 0; i < T; ++i) panels[i] = panel[i];
  for (int64_t t = 0; t < a.tiles; t += T) {
    const AffineTiles<T> tiles(a, t, affine.tile_bytes(a.x.groups));
    for (int64_t r = 0; r < a.rows; ++r) tiles.start(y[r]);
    for (int64_t g = 0; g < a.x.groups; g += kMost) {
      const int64_t groups = least(a.x.groups - g, kMost);
      for (int i = 0; i < T; ++i) unpack_affine<W>(tiles.at[i], factors, g, groups, panel[i]);
      for (int64_t r = 0; r < a.rows; r += kRowRegisters) {
        const int64_t rows = least(a.rows - r, kRowRegisters);
        multiply_panel<PanelFor<W>, T>(panels, a, r, rows, g, groups, y[r]);
      }
    }
    for (int64_t r = 0; r < a.rows; ++r) tiles.finish(y[r], tiles.y + r * a.y_stride);
  }
}

template <class W>
inline void multiply_planes_of(const MultiplyArgs& a, const Affine& affine) {
  if (a.rows == 1) return affine_few<W, 1>(a, affine);
  if (a.rows == 2) return affine_few<W, 2>(a, affine);
  affine_rows<W>(a, affine);
}

template <int Bits>
inline void multiply_bits(const MultiplyArgs& a, const Affine& affine) {
  if (affine.parts) return multiply_planes_of<AffinePlanes<Bits, 2> >(a, affine);
  multiply_planes_of<AffinePlanes<Bits, 1> >(a, affine);
}

inline void multiply_affine(const MultiplyArgs& a, const Affine& affine) {
  if (affine.bits == 2) return multiply_bits<2>(a, affine);
  if (affine.bits == 4) return multiply_bits<4>(a, affine);
  multiply_bits<8>(a, affine);
}

#endif

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
