// The sums of some rows with some tiles of a weight, group by group; see matmul-inl.h.
//
//   y[r][s] += sum_g scale[g,s] (sum_i x[r,g,i] w[g,i,s])
//
// The sums of a group are integers in registers: R rows times T tiles of kStrips vectors each.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/products/matmul.h"
#include "simd/target.h"
#if defined(TAMIZ_VECTORS)
#include "kernels/products/matmul_bytes-inl.h"
#include "kernels/products/matmul_weights-inl.h"
#include "kernels/products/planar-inl.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// `x`: the pair of activations in every lane.
inline Ints pair(const int16_t* x) {
  int both;
  memcpy(&both, x, sizeof(both));
  return all_ints(both);
}

/// sum[r][s] += the products of the pairs of inputs in vector v. Always inline, like all functions
/// that take sums: these must stay in registers.
template <class W, int R, int S, int Pair = 0>
__attribute__((always_inline)) inline void dot_vector(Ints (&sum)[R][S], const Ints (&raw)[S],
                                                      const int16_t* x) {
  if constexpr (Pair < kPairs / W::kVectors) {
    Ints w[S];
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) w[s] = W::template words<Pair>(raw[s]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Ints both = pair(x + r * kGroup + 2 * Pair);
#pragma GCC unroll 8
      for (int s = 0; s < S; ++s) sum[r][s] = dot_pairs(sum[r][s], w[s], both);
    }
    dot_vector<W, R, S, Pair + 1>(sum, raw, x);
  }
}

/// What the sum of one part of a row's group starts with: the words of W are kOffset too large.
template <class W, int Part>
__attribute__((always_inline)) inline Ints sum_start(const QuantRows& x, int64_t at) {
  return all_ints(W::kOffset == 0 ? 0 : -W::kOffset * quant_sum<W, Part>(x, at));
}

/// sum[r][s] = the products of one part of a group with R rows, whose group is number `at`; `bytes`
/// are their quants, split, where a weight is multiplied as bytes.
template <class W, int R, int T, int Part, bool High>
__attribute__((always_inline)) inline void sum_part(
    Ints (&sum)[R][T * kStrips], const uint8_t* const (&group)[T], const QuantRows& x, int64_t at,
    [[maybe_unused]] const SplitRows<R, High>& bytes) {
  if constexpr (kByBytes<W, R>) return sum_bytes<W, R, T, Part>(sum, group, x, at, bytes);
  constexpr int S = T * kStrips;
  constexpr int kVectors = W::kVectors / W::kParts;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Ints start = sum_start<W, Part>(x, at + r);
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) sum[r][s] = start;
  }
#pragma GCC unroll 16
  for (int v = Part * kVectors; v < (Part + 1) * kVectors; ++v) {
    Ints raw[S];
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) raw[s] = W::vector(group[s / kStrips], s % kStrips, v);
    dot_vector<W>(sum, raw, x.quants + at * kGroup + v * (kGroup / W::kVectors));
  }
}

/// Prefetches 64 bytes. Always inline, like its callers: GCC drops calls of
/// functions that do nothing but prefetch.
__attribute__((always_inline)) inline void prefetch(const uint8_t* p) {
  __builtin_prefetch(p, 0, 3);
}

/// Prefetches 64 bytes of a stream, into the second-level cache: the first level has too few line
/// buffers to keep memory busy. Where lines are skipped this is slower, as the prefetcher of that
/// cache then reads them too.
__attribute__((always_inline)) inline void prefetch_stream(const uint8_t* p) {
  __builtin_prefetch(p, 0, 2);
}

/// Scales and minima of the super-blocks of T tiles, where W has them.
template <class W, int T, bool Super = W::kSuper>
struct Spread {
  void read(const uint8_t* const (&)[T], int64_t) {}
};
template <class W, int T>
struct Spread<W, T, true> {
  /// Reads those of group g, the first of a super-block.
  void read(const uint8_t* const (&tile)[T], int64_t g) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) tiles[t].read(tile[t] + g * W::kGroupBytes);
  }
  template <int Part>
  Vec scales(int64_t g, int t, int strip) const {
    return tiles[t].scales(g % 8 * W::kParts + Part, strip);
  }
  template <int Part>
  Vec minima(int64_t g, int t, int strip) const {
    return tiles[t].minima(g % 8 * W::kParts + Part, strip);
  }

  typename W::Super tiles[T];
};

/// total[r][s] += the dequantised sums of a part of group g.
template <class W, int R, int T, int Part>
__attribute__((always_inline)) inline void add_part(Vec (&total)[R][T * kStrips],
                                                    const Ints (&sum)[R][T * kStrips],
                                                    const uint8_t* const (&group)[T],
                                                    const Spread<W, T>& spread, const QuantRows& x,
                                                    int64_t at, int64_t g) {
  float sums[R];
#pragma GCC unroll 8
  for (int r = 0; W::kMinima && r < R; ++r) {
    sums[r] = W::kParts == 1 ? x.sums[at + r]
                             : x.scales[at + r] * static_cast<float>(quant_sum<W, Part>(x, at + r));
  }
#pragma GCC unroll 8
  for (int s = 0; s < T * kStrips; ++s) {
    Vec scales, minima = broadcast(0.0f);
    if constexpr (W::kSuper) {
      scales = spread.template scales<Part>(g, s / kStrips, s % kStrips);
      if (W::kMinima) minima = spread.template minima<Part>(g, s / kStrips, s % kStrips);
    } else {  // a part of a Panel has its own
      const uint8_t* const from = group[s / kStrips] + Part * kPartFactors;
      scales = W::scales(from, s % kStrips);
      minima = W::minima(from, s % kStrips);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec scaled = to_float(sum[r][s]) * broadcast(x.scales[at + r]);
      total[r][s] = fma(scaled, scales, total[r][s]);
      if (W::kMinima) total[r][s] = fma(broadcast(sums[r]), minima, total[r][s]);
    }
  }
}

/// total[r][s] += one group of R rows, part by part.
template <class W, int R, int T, int Part = 0, bool High = true>
__attribute__((always_inline)) inline void add_group(Vec (&total)[R][T * kStrips],
                                                     const uint8_t* const (&group)[T],
                                                     const Spread<W, T>& spread, const QuantRows& x,
                                                     int64_t at, int64_t g,
                                                     const SplitRows<R, High>& bytes) {
  if constexpr (Part < W::kParts) {
    Ints sum[R][T * kStrips];
    sum_part<W, R, T, Part>(sum, group, x, at, bytes);
    add_part<W, R, T, Part>(total, sum, group, spread, x, at, g);
    add_group<W, R, T, Part + 1>(total, group, spread, x, at, g, bytes);
  }
}

/// What is read after a panel: some lines of T tiles are prefetched at every call, until none is
/// left. All at once would wait for line buffers.
template <int T>
struct Coming {
  static constexpr int64_t kLine = 64;

  /// `bytes` of each of `tiles`, which may begin within a line, in `calls`.
  Coming(const uint8_t* const (&tiles)[T], int64_t bytes, int64_t calls)
      : left((bytes + kLine - 1) / kLine + 1), lines((left + calls - 1) / calls) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) at[t] = tiles[t];
  }
  __attribute__((always_inline)) void fetch() {
    if (left <= 0) return;
    for (int64_t i = 0; i < lines; ++i) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        prefetch_stream(at[t]);
        at[t] += kLine;
      }
    }
    left -= lines;
  }

  const uint8_t* at[T];
  int64_t left;   // lines of a tile
  int64_t lines;  // of a tile in a call
};

/// Groups that are prefetched ahead: more gain nothing, fewer wait for memory.
constexpr int64_t kAhead = 8;

/// Prefetches the group of a tile that is `Ahead` groups ahead, or where the `next` tile begins.
template <class W, int64_t Ahead = kAhead>
TAMIZ_ALWAYS_INLINE void prefetch_ahead(const uint8_t* tile, const uint8_t* next, int64_t g,
                                        int64_t groups) {
  const int64_t ahead = g + Ahead;
  const uint8_t* const later =
      ahead < groups ? tile + ahead * W::kGroupBytes : next + (ahead - groups) * W::kGroupBytes;
  for (int64_t i = 0; i < W::kGroupBytes; i += 64) prefetch_stream(later + i);
}

/// y[r][s] += the groups from `first` on, of R rows and T tiles; `next` are the tiles after these.
/// `coming` is prefetched meanwhile. Not inline: GCC would unroll less, and sums would be in
/// memory.
template <class W, int R, int T>
__attribute__((noinline, flatten)) void multiply_block(const uint8_t* const (&tile)[T],
                                                       const uint8_t* const (&next)[T],
                                                       const QuantRows& x, int64_t row,
                                                       int64_t first, int64_t groups, float* y,
                                                       Coming<T>* coming = nullptr) {
  constexpr int S = T * kStrips;
  const int64_t together = x.together(row);
  int64_t at = x.at(row, first);
  Vec total[R][S];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) total[r][s] = load(y + (r * S + s) * kLanes);
  }
  Spread<W, T> spread;
  for (int64_t g = 0; g < groups; ++g, at += together) {
    if (!W::kFromMemory && coming) coming->fetch();
    const uint8_t* group[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      group[t] = W::group(tile[t], g);
      if constexpr (W::kFromMemory) prefetch_ahead<W>(tile[t], next[t], g, groups);
    }
    if (W::kSuper && g % 8 == 0) spread.read(tile, g);
    alignas(64) int8_t bytes[R][2 * kGroup];
    if constexpr (kByBytes<W, R>) {
      split_rows<W>(x.quants + at * kGroup, bytes);
      if constexpr (kLowAlone<W, R>) {
        if (!any_high(bytes)) {
          add_group<W, R, T>(total, group, spread, x, at, g, SplitRows<R, false>{bytes});
          continue;
        }
      }
    }
    add_group<W, R, T>(total, group, spread, x, at, g, SplitRows<R>{bytes});
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) store(y + (r * S + s) * kLanes, total[r][s]);
  }
}

/// The next group with a kept input, of R rows with the same mask.
template <int R>
inline int64_t next_kept(const QuantRows& x, int64_t g) {
  do ++g;
  while (g < x.groups && x.kept[g * R] == 0);
  return g;
}

/// Groups that are prefetched ahead of those with kept inputs. What is read in pieces comes later;
/// where half of the groups are kept whole, the processor prefetches as well, and more is slower.
template <int R>
inline int64_t kept_ahead(const QuantRows& x) {
  int64_t whole = 0;
  for (int64_t g = 0; g < x.groups; ++g) whole += x.kept[g * R] == 255;
  return 2 * whole < x.groups ? 6 : 2;
}

/// Whether an input of vector v is kept.
template <class W>
inline bool is_kept(uint8_t kept, int v) {
  constexpr int kBits = kGroup / W::kVectors / 4;
  return kept >> v * kBits & ((1 << kBits) - 1);
}

template <class W, int T>
__attribute__((always_inline)) inline void prefetch_kept(const uint8_t* const (&tile)[T],
                                                         int64_t next, int64_t g, uint8_t kept) {
  if constexpr (!W::kApart) {  // inputs of all vectors share the planes
    for (int64_t i = 0; i < W::kGroupBytes; i += 64) {
      for (int t = 0; t < T; ++t) prefetch(W::group(tile[t] + next, g) + i);
    }
    return;
  }
  const int64_t offset = next + g * W::kGroupBytes;
  for (int v = 0; v < W::kVectors; ++v) {
    if (!is_kept<W>(kept, v)) continue;
    for (int t = 0; t < T; ++t) {
      const uint8_t* const vector = tile[t] + offset + 64 * v;
      prefetch(vector);
      if (W::kGroupBytes % 64) prefetch(vector + 63);
    }
  }
  for (int t = 0; t < T; ++t) prefetch(tile[t] + offset + W::kGroupBytes - 1);  // scales
}

/// total[r][s] += the kept vectors of one group of R rows, part by part.
template <class W, int R, int T, int Part = 0>
inline void add_kept(Vec (&total)[R][T * kStrips], const uint8_t* const (&group)[T],
                     const Spread<W, T>& spread, const QuantRows& x, int64_t g) {
  if constexpr (Part < W::kParts) {
    constexpr int S = T * kStrips;
    constexpr int kVectors = W::kVectors / W::kParts;
    const int64_t at = g * R;
    Ints sum[R][S];
    for (int r = 0; r < R; ++r) {
      for (int s = 0; s < S; ++s) sum[r][s] = sum_start<W, Part>(x, at + r);
    }
#pragma GCC unroll 8
    for (int v = Part * kVectors; v < (Part + 1) * kVectors; ++v) {
      if (!is_kept<W>(x.kept[at], v)) continue;
      Ints raw[S];
      for (int s = 0; s < S; ++s) raw[s] = W::vector(group[s / kStrips], s % kStrips, v);
      dot_vector<W>(sum, raw, x.quants + at * kGroup + v * (kGroup / W::kVectors));
    }
    add_part<W, R, T, Part>(total, sum, group, spread, x, at, g);
    add_kept<W, R, T, Part + 1>(total, group, spread, x, g);
  }
}

/// y[r][s] += R rows with the same mask times T tiles, without reading weight vectors whose inputs
/// are not kept. There are no other rows.
template <class W, int R = 1, int T>
inline void multiply_kept(const uint8_t* const (&tile)[T], const QuantRows& x, float* y) {
  constexpr int S = T * kStrips;
  Vec total[R][S];
  for (int r = 0; r < R; ++r) {
    for (int s = 0; s < S; ++s) total[r][s] = load(y + (r * S + s) * kLanes);
  }
  const int64_t begin = next_kept<R>(x, -1);
  int64_t later = begin;  // what is prefetched
  for (int64_t i = kept_ahead<R>(x); i > 1 && later < x.groups; --i) later = next_kept<R>(x, later);
  int64_t next = 0, block = -1;
  Spread<W, T> spread;
  for (int64_t g = begin; g < x.groups; g = next_kept<R>(x, g)) {
    later = next_kept<R>(x, later);
    if (later >= x.groups) {  // where the T tiles after these begin
      later = begin;
      next = T * tile_bytes_of<W>(x.groups);
    }
    prefetch_kept<W>(tile, next, later, x.kept[later * R]);
    if (W::kSuper && g / 8 != block) {
      block = g / 8;
      spread.read(tile, 8 * block);
    }
    const uint8_t* group[T];
    for (int t = 0; t < T; ++t) group[t] = W::group(tile[t], g);
    add_kept<W, R, T>(total, group, spread, x, g);
  }
  for (int r = 0; r < R; ++r) {
    for (int s = 0; s < S; ++s) store(y + (r * S + s) * kLanes, total[r][s]);
  }
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
#endif
