// y[o] = bias[o] + sum_g ( (sum_i xq[g,i] wq[o,g,i]) xs[g] ws[o,g] + xsum[g] wmin[o,g] )
//
// Lanes run along the outputs: a strip is a vector of outputs, a tile one strip (AVX-512) or two
// (AVX2). A weight vector holds pairs of inputs as 16-bit words, an activation pair is broadcast to
// all lanes, and one instruction (VPDPWSSD; VPMADDWD + VPADDD) multiplies and adds both.
//
// Few rows (decode): weights are unpacked in registers. Many rows (prefill): some groups of two
// strips are unpacked once into a panel in the L1 cache, then the rows pass over it, a block of
// registers at a time.
//
// Included once per target.
#include <stdint.h>
#include <string.h>

#include "kernels/matmul.h"
#include "kernels/simd.h"

#if !defined(TAMIZ_AVX512) && !defined(TAMIZ_AVX2)
#include "kernels/matmul_scalar-inl.h"
#else

namespace tamiz {
namespace TAMIZ_TARGET {

// ---- vectors of integers ----

#if defined(TAMIZ_AVX512)

using Ints = __m512i;

inline Ints load_ints(const void* p) { return _mm512_loadu_si512(p); }
inline void store_ints(void* p, Ints x) { _mm512_storeu_si512(p, x); }
inline Ints all_words(int x) { return _mm512_set1_epi16(static_cast<short>(x)); }
inline Ints all_ints(int x) { return _mm512_set1_epi32(x); }
inline Ints bits_and(Ints a, Ints b) { return _mm512_and_si512(a, b); }
inline Ints words_minus(Ints a, Ints b) { return _mm512_sub_epi16(a, b); }
template <int Bits>
inline Ints words_right(Ints x) {
  return _mm512_srli_epi16(x, Bits);
}
inline Ints dot_pairs(Ints sum, Ints a, Ints b) { return _mm512_dpwssd_epi32(sum, a, b); }
inline Vec to_float(Ints x) { return _mm512_cvtepi32_ps(x); }
inline Vec load_halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

inline Ints float_bits(Vec x) { return _mm512_castps_si512(x); }
inline Ints to_ints(Vec x) { return _mm512_cvtps_epi32(x); }
inline Ints ints_max(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
inline int largest_int(Ints x) { return _mm512_reduce_max_epi32(x); }
inline int sum_ints(Ints x) { return _mm512_reduce_add_epi32(x); }
/// a, b as words, of every four in the order 0, 2, 1, 3.
inline Ints pack_words(Ints a, Ints b) {
  const Ints packed =
      _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_packs_epi32(a, b));
  return _mm512_shufflehi_epi16(_mm512_shufflelo_epi16(packed, 0xd8), 0xd8);
}
inline Vec keep_lanes(Vec x, uint32_t bits) {
  return _mm512_maskz_mov_ps(static_cast<__mmask16>(bits), x);
}

constexpr int kRowRegisters = 8;  // rows of a register block: 8 rows x 2 strips of sums

#else

using Ints = __m256i;

inline Ints load_ints(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void store_ints(void* p, Ints x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
inline Ints all_words(int x) { return _mm256_set1_epi16(static_cast<short>(x)); }
inline Ints all_ints(int x) { return _mm256_set1_epi32(x); }
inline Ints bits_and(Ints a, Ints b) { return _mm256_and_si256(a, b); }
inline Ints words_minus(Ints a, Ints b) { return _mm256_sub_epi16(a, b); }
template <int Bits>
inline Ints words_right(Ints x) {
  return _mm256_srli_epi16(x, Bits);
}
inline Ints dot_pairs(Ints sum, Ints a, Ints b) {
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
  asm("" : "+x"(sum));  // GCC would regroup the additions, and spill
  return sum;
}
inline Vec to_float(Ints x) { return _mm256_cvtepi32_ps(x); }
inline Vec load_halves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

inline Ints float_bits(Vec x) { return _mm256_castps_si256(x); }
inline Ints to_ints(Vec x) { return _mm256_cvtps_epi32(x); }
inline Ints ints_max(Ints a, Ints b) { return _mm256_max_epi32(a, b); }
inline int largest_int(Ints x) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}
inline int sum_ints(Ints x) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
inline Ints pack_words(Ints a, Ints b) {
  const Ints packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  return _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(packed, 0xd8), 0xd8);
}
inline Vec keep_lanes(Vec x, uint32_t bits) {
  const Ints lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const Ints kept = _mm256_cmpeq_epi32(bits_and(all_ints(static_cast<int>(bits)), lane), lane);
  return _mm256_and_ps(_mm256_castsi256_ps(kept), x);
}

constexpr int kRowRegisters = 4;

#endif

// ---- activations ----

/// Bit i is set where the mask keeps input first + i.
inline uint32_t kept_inputs(const uint8_t* mask, int64_t block, int64_t first, int64_t count) {
  if (block == 1 && count == kGroup) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(mask + first));
    return ~static_cast<uint32_t>(
        _mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_setzero_si256())));
  }
  uint32_t kept = 0;
  int64_t index = first / block;
  int64_t end = (index + 1) * block - first;
  for (int64_t i = 0; i < count; end += block) {
    const int64_t stop = end < count ? end : count;
    if (mask[index++]) kept |= (~0u >> (kGroup - (stop - i))) << i;
    i = stop;
  }
  return kept;
}

/// One bit for every four.
inline uint8_t kept_quads(uint32_t kept) {
  uint8_t quads = 0;
  for (int i = 0; i < 8; ++i) quads |= static_cast<uint8_t>(((kept >> 4 * i & 15) != 0) << i);
  return quads;
}

inline void quantize(const float* x, int64_t k, const uint8_t* mask, int64_t block,
                     const QuantRows& to, int64_t row) {
  constexpr int kVecs = kGroup / kLanes;
  const Ints magnitude = all_ints(0x7fffffff);
  const Ints one = all_words(1);
  for (int64_t g = 0; g < to.groups; ++g) {
    const int64_t at = to.at(row, g);
    const int64_t count = k - g * kGroup < kGroup ? k - g * kGroup : kGroup;
    float padded[kGroup];
    const float* from = x + g * kGroup;
    if (count < kGroup) {
      memset(padded, 0, sizeof(padded));
      memcpy(padded, from, static_cast<size_t>(count) * sizeof(float));
      from = padded;
    }
    Vec v[kVecs];
    for (int i = 0; i < kVecs; ++i) v[i] = load(from + i * kLanes);
    if (mask) {
      const uint32_t kept = kept_inputs(mask, block, g * kGroup, count);
      for (int i = 0; i < kVecs; ++i) v[i] = keep_lanes(v[i], kept >> i * kLanes);
      to.kept[at] = kept_quads(kept);
    }
    // Of floats without sign the integers compare alike, and NaN is the largest.
    Ints top = bits_and(float_bits(v[0]), magnitude);
    for (int i = 1; i < kVecs; ++i) top = ints_max(top, bits_and(float_bits(v[i]), magnitude));
    const int32_t top_bits = largest_int(top);
    float largest;
    memcpy(&largest, &top_bits, sizeof(largest));
    const bool tiny = largest < 0x1p-110f;
    const float scale = tiny ? 0.0f : largest / 32512.0f + (largest - largest);
    const Vec inverse = broadcast(tiny ? 0.0f : 32512.0f / largest);
    Ints sum = all_ints(0);
    for (int i = 0; i < kVecs; i += 2) {
      const Ints words = pack_words(to_ints(v[i] * inverse), to_ints(v[i + 1] * inverse));
      store_ints(to.quants + at * kGroup + i * kLanes, words);
      sum = dot_pairs(sum, words, one);
    }
    to.scales[at] = scale;
    to.sums[at] = scale * static_cast<float>(sum_ints(sum));
  }
}

// ---- weights ----

constexpr int kStrips = kTile / kLanes;  // of a tile
constexpr int kPairs = kGroup / 2;       // of inputs in a group

/// Where the parts of a group of one tile lie: vector `v` of a strip, its pairs of inputs as words,
/// its scales and minima.
struct Int4 {
  static constexpr int64_t kGroupBytes = 320;
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
  static Vec scales(const uint8_t* group, int strip) {
    return load_halves(group + 256 + 2 * kLanes * strip);
  }
  static Vec minima(const uint8_t* group, int strip) {
    return load_halves(group + 288 + 2 * kLanes * strip);
  }
};

struct Int8 {
  static constexpr int64_t kGroupBytes = 544;
  static constexpr bool kFromMemory = true;
  static constexpr int kVectors = 8;
  static constexpr bool kMinima = false;

  static Ints vector(const uint8_t* group, int strip, int v) {
    return load_ints(group + 64 * v + 4 * kLanes * strip);
  }
  template <int Pair>
  static Ints words(Ints x) {
    return words_minus(Pair == 0 ? bits_and(x, all_words(255)) : words_right<8>(x), all_words(128));
  }
  static Vec scales(const uint8_t* group, int strip) {
    return load_halves(group + 512 + 2 * kLanes * strip);
  }
  static Vec minima(const uint8_t*, int) { return broadcast(0.0f); }
};

/// Either of them unpacked: strip by strip 16 vectors of words, then scales and minima as floats.
template <class Packed>
struct Panel {
  static constexpr int64_t kWordBytes = kPairs * sizeof(Ints);
  static constexpr int64_t kStripBytes = kWordBytes + 2 * sizeof(Vec);
  static constexpr int64_t kGroupBytes = kStrips * kStripBytes;
  static constexpr bool kFromMemory = false;
  static constexpr int kVectors = kPairs;
  static constexpr bool kMinima = Packed::kMinima;

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

/// `x`: the pair of activations in every lane.
inline Ints pair(const int16_t* x) {
  int both;
  memcpy(&both, x, sizeof(both));
  return all_ints(both);
}

/// sum[r][s] += the products of the pairs of inputs in vector v.
template <class W, int R, int S, int Pair = 0>
inline void dot_vector(Ints (&sum)[R][S], const Ints (&raw)[S], const int16_t* x) {
  if constexpr (Pair < kPairs / W::kVectors) {
    Ints w[S];
    for (int s = 0; s < S; ++s) w[s] = W::template words<Pair>(raw[s]);
    for (int r = 0; r < R; ++r) {
      const Ints both = pair(x + r * kGroup + 2 * Pair);
      for (int s = 0; s < S; ++s) sum[r][s] = dot_pairs(sum[r][s], w[s], both);
    }
    dot_vector<W, R, S, Pair + 1>(sum, raw, x);
  }
}

/// Asks for a group that is read later.
template <class W>
inline void prefetch(const uint8_t* group) {
  for (int64_t i = 0; i < W::kGroupBytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(group + i), _MM_HINT_T0);
  }
}

/// y[r][s] += the groups from `first` on, of R rows and T tiles. `Skip`: weight vectors whose
/// inputs are not kept are not read (R = 1).
template <class W, int R, int T, bool Skip>
inline void multiply_block(const uint8_t* const (&tile)[T], const QuantRows& x, int64_t row,
                           int64_t first, int64_t groups, float* y) {
  constexpr int S = T * kStrips;
  constexpr int kVectorInputs = kGroup / W::kVectors;
  const int64_t together = x.together(row);
  int64_t at = x.at(row, first);
  Vec total[R][S];
  for (int r = 0; r < R; ++r) {
    for (int s = 0; s < S; ++s) total[r][s] = load(y + (r * S + s) * kLanes);
  }
  for (int64_t g = 0; g < groups; ++g, at += together) {
    if (Skip && x.kept[at] == 0) continue;
    const uint8_t* group[T];
    for (int t = 0; t < T; ++t) {
      group[t] = tile[t] + g * W::kGroupBytes;
      if constexpr (W::kFromMemory) prefetch<W>(group[t] + 2 * W::kGroupBytes);
    }
    Ints sum[R][S];
    for (int r = 0; r < R; ++r) {
      for (int s = 0; s < S; ++s) sum[r][s] = all_ints(0);
    }
#pragma GCC unroll 16
    for (int v = 0; v < W::kVectors; ++v) {
      if (Skip && !(x.kept[at] >> v * kVectorInputs / 4 & ((1 << kVectorInputs / 4) - 1))) continue;
      Ints raw[S];
      for (int s = 0; s < S; ++s) raw[s] = W::vector(group[s / kStrips], s % kStrips, v);
      dot_vector<W>(sum, raw, x.quants + at * kGroup + v * kVectorInputs);
    }
    for (int s = 0; s < S; ++s) {
      const Vec scales = W::scales(group[s / kStrips], s % kStrips);
      const Vec minima = W::minima(group[s / kStrips], s % kStrips);
      for (int r = 0; r < R; ++r) {
        const Vec scaled = to_float(sum[r][s]) * broadcast(x.scales[at + r]);
        total[r][s] = fma(scaled, scales, total[r][s]);
        if (W::kMinima) total[r][s] = fma(broadcast(x.sums[at + r]), minima, total[r][s]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int s = 0; s < S; ++s) store(y + (r * S + s) * kLanes, total[r][s]);
  }
}

// ---- the product ----

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/// T tiles from tile `first` on; past the end the last one again.
template <class W, int T>
struct Tiles {
  const uint8_t* at[T];
  int64_t outputs;  // that exist
  const float* bias;
  float* y;

  Tiles(const MultiplyArgs& a, int64_t first)
      : outputs(least(a.outputs - first * kTile, T * kTile)),
        bias(a.bias ? a.bias + first * kTile : nullptr),
        y(a.y + first * kTile) {
    for (int t = 0; t < T; ++t) {
      at[t] = a.weight + least(first + t, a.tiles - 1) * a.x.groups * W::kGroupBytes;
    }
  }
  size_t bytes() const { return static_cast<size_t>(outputs) * sizeof(float); }
  void start(float* row) const {
    memset(row, 0, T * kTile * sizeof(float));
    if (bias) memcpy(row, bias, bytes());
  }
};

/// Up to R rows from `row` on, weights straight from the packed tiles. Several strips at a time:
/// several streams from memory are faster than one.
template <class W, bool Skip, int R = kRowRegisters>
inline void few_rows(const MultiplyArgs& a, int64_t row, int64_t rows) {
  if (rows < R) {
    if constexpr (R > 1) few_rows<W, Skip, R - 1>(a, row, rows);
    return;
  }
  constexpr int T = (2 * R <= kRowRegisters ? 4 : 2) / kStrips;
  for (int64_t t = 0; t < a.tiles; t += T) {
    const Tiles<W, T> tiles(a, t);
    alignas(64) float y[R][T * kTile];
    for (int r = 0; r < R; ++r) tiles.start(y[r]);
    multiply_block<W, R, T, Skip>(tiles.at, a.x, a.first_row + row, 0, a.x.groups, y[0]);
    for (int r = 0; r < R; ++r) memcpy(tiles.y + (row + r) * a.y_stride, y[r], tiles.bytes());
  }
}

template <class W, int Pair = 0>
inline void unpack_vector(Ints raw, uint8_t* to) {
  if constexpr (Pair < kPairs / W::kVectors) {
    store_ints(to + Pair * sizeof(Ints), W::template words<Pair>(raw));
    unpack_vector<W, Pair + 1>(raw, to);
  }
}

template <class W>
inline void unpack(const uint8_t* tile, int64_t groups, uint8_t* panel) {
  for (int64_t g = 0; g < groups; ++g, tile += W::kGroupBytes) {
    prefetch<W>(tile + groups * W::kGroupBytes);
    for (int strip = 0; strip < kStrips; ++strip, panel += Panel<W>::kStripBytes) {
      for (int v = 0; v < W::kVectors; ++v) {
        unpack_vector<W>(W::vector(tile, strip, v),
                         panel + v * (kPairs / W::kVectors) * sizeof(Ints));
      }
      float* factors = reinterpret_cast<float*>(panel + Panel<W>::kWordBytes);
      store(factors, W::scales(tile, strip));
      store(factors + kLanes, W::minima(tile, strip));
    }
  }
}

/// The first `rows` rows, a multiple of kRowRegisters.
template <class W>
inline void many_rows(const MultiplyArgs& a, int64_t rows) {
  constexpr int T = 2 / kStrips;
  constexpr int64_t kPanelGroups = 8;
  alignas(64) uint8_t panel[T][kPanelGroups * Panel<W>::kGroupBytes];
  alignas(64) float y[kRowBlock][T * kTile];
  const uint8_t* unpacked[T];
  for (int i = 0; i < T; ++i) unpacked[i] = panel[i];
  for (int64_t t = 0; t < a.tiles; t += T) {
    const Tiles<W, T> tiles(a, t);
    for (int64_t r = 0; r < rows; ++r) tiles.start(y[r]);
    for (int64_t g = 0; g < a.x.groups; g += kPanelGroups) {
      const int64_t groups = least(a.x.groups - g, kPanelGroups);
      for (int i = 0; i < T; ++i) unpack<W>(tiles.at[i] + g * W::kGroupBytes, groups, panel[i]);
      for (int64_t r = 0; r < rows; r += kRowRegisters) {
        multiply_block<Panel<W>, kRowRegisters, T, false>(unpacked, a.x, a.first_row + r, g, groups,
                                                          y[r]);
      }
    }
    for (int64_t r = 0; r < rows; ++r) memcpy(tiles.y + r * a.y_stride, y[r], tiles.bytes());
  }
}

template <class W>
inline void multiply_packed(const MultiplyArgs& a) {
  if (a.skip) return few_rows<W, true, 1>(a, 0, 1);
  int64_t row = 0;
  if (a.rows >= 2 * kRowRegisters) {  // unpacking is worth it
    row = a.rows / kRowRegisters * kRowRegisters;
    many_rows<W>(a, row);
  }
  for (; row < a.rows; row += kRowRegisters) {
    few_rows<W, false>(a, row, least(a.rows - row, kRowRegisters));
  }
}

inline void multiply(const MultiplyArgs& a) {
  if (a.bits == 4) {
    multiply_packed<Int4>(a);
  } else {
    multiply_packed<Int8>(a);
  }
}

constexpr MatMulKernels matmul_kernels = {quantize, multiply};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
