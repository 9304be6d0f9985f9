// y[o] += sum_g ( (sum over the active i of xq[g,i] wq[o,g,i]) xs[g] ws[o,g] + xsum[g] wmin[o,g] )
//
// Four records at a time: bytes of the same outputs are brought side by side (unpack), so that a
// 32-bit lane holds four inputs of one output, and multiplied with the high and the low bytes of
// the activations. kernels/channels.h shows how the weight lies.
//
// Included once per target, after kernels/matmul-inl.h.
#include <stdint.h>
#include <string.h>

#include "kernels/channels.h"
#if !defined(TAMIZ_AVX512) && !defined(TAMIZ_AVX2)
#include "kernels/channels_scalar-inl.h"
#endif

namespace tamiz {
namespace TAMIZ_TARGET {

// ---- the active inputs ----

/// `quants`: of a group, of every four inputs in the order 0, 2, 1, 3.
#if defined(TAMIZ_AVX512)
inline void list_group(const int16_t* quants, ActiveGroup& to) {
  alignas(32) static constexpr uint8_t kInputs[kGroup] = {
      0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
      16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
  __m512i q = _mm512_loadu_si512(quants);
  q = _mm512_shufflehi_epi16(_mm512_shufflelo_epi16(q, 0xd8), 0xd8);
  const __mmask32 active = _mm512_test_epi16_mask(q, q);
  const __m256i first = _mm256_set1_epi8(static_cast<char>(active ? __builtin_ctz(active) : 0));
  const __m256i inputs = _mm256_load_si256(reinterpret_cast<const __m256i*>(kInputs));
  q = _mm512_maskz_compress_epi16(active, q);
  const __m512i high = _mm512_srai_epi16(_mm512_add_epi16(q, _mm512_set1_epi16(128)), 8);
  _mm256_store_si256(reinterpret_cast<__m256i*>(to.input),
                     _mm256_mask_compress_epi8(first, active, inputs));
  _mm256_store_si256(reinterpret_cast<__m256i*>(to.high), _mm512_cvtepi16_epi8(high));
  _mm256_store_si256(reinterpret_cast<__m256i*>(to.low), _mm512_cvtepi16_epi8(q));
  to.count = __builtin_popcount(active);
}
#else
inline void list_group(const int16_t* quants, ActiveGroup& to) {
  constexpr int kOrder[] = {0, 2, 1, 3};
  memset(to.high, 0, sizeof(to.high));
  memset(to.low, 0, sizeof(to.low));
  int count = 0;
  for (int i = 0; i < kGroup; ++i) {
    const int quant = quants[i / 4 * 4 + kOrder[i % 4]];
    if (quant == 0) continue;
    to.input[count] = static_cast<uint8_t>(i);
    to.high[count] = static_cast<int8_t>((quant + 128) >> 8);
    to.low[count] = static_cast<int8_t>(quant & 255);
    ++count;
  }
  memset(to.input + count, count ? to.input[0] : 0, static_cast<size_t>(kGroup - count));
  to.count = count;
}
#endif

inline int64_t list_channels(const QuantRows& x, int64_t row, bool masked, ActiveGroup* to) {
  int64_t listed = 0;
  for (int64_t g = 0; g < x.groups; ++g) {
    const int64_t at = x.at(row, g);
    if (masked && x.kept[at] == 0) continue;
    ActiveGroup& group = to[listed++];
    list_group(x.quants + at * kGroup, group);
    group.group = static_cast<int32_t>(g);
    group.scale = x.scales[at];
    group.sum = x.sums[at];
  }
  return listed;
}

#if defined(TAMIZ_AVX512) || defined(TAMIZ_AVX2)

// ---- the product ----

/// The two lower or the two upper quarters of every 16 bytes of a and b, byte by byte in turn.
template <bool Upper>
inline Ints interleave_bytes(Ints a, Ints b) {
#if defined(TAMIZ_AVX512)
  return Upper ? _mm512_unpackhi_epi8(a, b) : _mm512_unpacklo_epi8(a, b);
#else
  return Upper ? _mm256_unpackhi_epi8(a, b) : _mm256_unpacklo_epi8(a, b);
#endif
}

template <bool Upper>
inline Ints interleave_words(Ints a, Ints b) {
#if defined(TAMIZ_AVX512)
  return Upper ? _mm512_unpackhi_epi16(a, b) : _mm512_unpacklo_epi16(a, b);
#else
  return Upper ? _mm256_unpackhi_epi16(a, b) : _mm256_unpacklo_epi16(a, b);
#endif
}

/// sum += products of unsigned bytes up to 15 with signed ones. AVX2 has them in words, which hold
/// the eight sums of a group: 8 * 2 * 15 * 128 < 2^15.
inline Ints dot_bytes(Ints sum, Ints a, Ints b) {
#if defined(TAMIZ_AVX512)
  return _mm512_dpbusd_epi32(sum, a, b);
#else
  return _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b));
#endif
}

/// 256 high + low of what `dot_bytes` summed.
inline Ints joined(Ints high, Ints low) {
#if defined(TAMIZ_AVX512)
  return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
#else
  return _mm256_add_epi32(_mm256_madd_epi16(high, all_words(256)),
                          _mm256_madd_epi16(low, all_words(1)));
#endif
}

inline int four_bytes(const int8_t* p) {
  int word;
  memcpy(&word, p, sizeof(word));
  return word;
}

/// A panel of 128 outputs: a record is 64 bytes, so on AVX2 in two parts.
struct WholePanel {
  static constexpr int64_t kOutputs = kPanel;
  static constexpr int64_t kRecord = kPanel / 2;
  static constexpr int kParts = kRecord / static_cast<int>(sizeof(Ints));
  static constexpr int kInputs = 4;   // at a time
  static constexpr int kVectors = 4;  // of outputs, that four strips make

  static Ints record(const uint8_t* records, const uint8_t* input, int part) {
    return load_ints(records + *input * kRecord + part * static_cast<int>(sizeof(Ints)));
  }
  static Ints activations(const int8_t* x) { return all_ints(four_bytes(x)); }
  static Ints outputs(const Ints (&strips)[4], int v) { return strips[v]; }
  static int64_t first(int part, int v) { return 16 * v + part * kLanes; }
};

/// A panel of 64: a record is 32 bytes. On AVX-512 two times four inputs share the vectors.
struct HalvedPanel {
  static constexpr int64_t kOutputs = kHalfPanel;
  static constexpr int64_t kRecord = kHalfPanel / 2;
  static constexpr int kParts = 1;
#if defined(TAMIZ_AVX512)
  static constexpr int kInputs = 8;
  static constexpr int kVectors = 2;

  static __m256i half(const uint8_t* records, uint8_t input) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(records + input * kRecord));
  }
  static Ints record(const uint8_t* records, const uint8_t* input, int) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(half(records, input[0])),
                              half(records, input[4]), 1);
  }
  static Ints activations(const int8_t* x) {
    return _mm512_inserti64x4(_mm512_set1_epi32(four_bytes(x)),
                              _mm256_set1_epi32(four_bytes(x + 4)), 1);
  }
  static Ints outputs(const Ints (&strips)[4], int v) {
    const Ints a = strips[2 * v];
    const Ints b = strips[2 * v + 1];
    return _mm512_add_epi32(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xee));
  }
#else
  static constexpr int kInputs = 4;
  static constexpr int kVectors = 4;

  static Ints record(const uint8_t* records, const uint8_t* input, int) {
    return load_ints(records + *input * kRecord);
  }
  static Ints activations(const int8_t* x) { return all_ints(four_bytes(x)); }
  static Ints outputs(const Ints (&strips)[4], int v) { return strips[v]; }
#endif
  static int64_t first(int, int v) { return v * kLanes; }
};

/// Half of the outputs of one group, the lower or the upper ones, added to y.
template <class P, bool Upper>
inline void multiply_strips(const uint8_t* group, const ActiveGroup& x, int part, float* y) {
  Ints high[4], low[4];
  for (int s = 0; s < 4; ++s) high[s] = low[s] = all_ints(0);
  const Ints nibble = all_words(0x0f0f);
  for (int i = 0; i < x.count; i += P::kInputs) {
    Ints r[4];
    for (int c = 0; c < 4; ++c) r[c] = P::record(group, x.input + i + c, part);
    const Ints ab = interleave_bytes<Upper>(r[0], r[1]);
    const Ints cd = interleave_bytes<Upper>(r[2], r[3]);
    const Ints quads[] = {interleave_words<false>(ab, cd), interleave_words<true>(ab, cd)};
    const Ints x_high = P::activations(x.high + i);
    const Ints x_low = P::activations(x.low + i);
    for (int s = 0; s < 4; ++s) {
      const Ints w = bits_and(s % 2 ? words_right<4>(quads[s / 2]) : quads[s / 2], nibble);
      high[s] = dot_bytes(high[s], w, x_high);
      low[s] = dot_bytes(low[s], w, x_low);
    }
  }
  Ints strips[4];
  for (int s = 0; s < 4; ++s) strips[s] = joined(high[s], low[s]);
  const uint8_t* scales = group + kGroup * P::kRecord;
  for (int v = 0; v < P::kVectors; ++v) {
    const int64_t o = (Upper ? P::kOutputs / 2 : 0) + P::first(part, v);
    const Vec scaled = to_float(P::outputs(strips, v)) * broadcast(x.scale);
    const Vec sum = fma(scaled, load_halves(scales + 2 * o), load(y + o));
    store(y + o, fma(broadcast(x.sum), load_halves(scales + 2 * (P::kOutputs + o)), sum));
  }
}

/// Asks for what a group will read.
template <class P>
__attribute__((always_inline)) inline void prefetch_active(const uint8_t* panel,
                                                           const ActiveGroup& x) {
  const uint8_t* group = panel + x.group * panel_group_bytes(P::kOutputs);
  for (int i = 0; i < x.count; ++i) prefetch(group + x.input[i] * P::kRecord);
  for (int64_t i = kGroup * P::kRecord; i < panel_group_bytes(P::kOutputs); i += 64) {
    prefetch(group + i);
  }
}

template <class P>
inline void multiply_panel(const ChannelArgs& a) {
  constexpr int64_t kAhead = 2;  // groups
  const ActiveGroup* const end = a.active + a.active_groups;
  for (const ActiveGroup* g = a.active; g < end && g < a.active + kAhead; ++g) {
    prefetch_active<P>(a.panel, *g);
  }
  for (const ActiveGroup* g = a.active; g < end; ++g) {
    if (g + kAhead < end) prefetch_active<P>(a.panel, g[kAhead]);
    const uint8_t* group = a.panel + g->group * panel_group_bytes(P::kOutputs);
    for (int part = 0; part < P::kParts; ++part) {
      multiply_strips<P, false>(group, *g, part, a.y);
      multiply_strips<P, true>(group, *g, part, a.y);
    }
  }
}

inline void multiply_channels(const ChannelArgs& a) {
  if (a.outputs == kPanel) {
    multiply_panel<WholePanel>(a);
  } else {
    multiply_panel<HalvedPanel>(a);
  }
}

// ---- tiles ----

/// 32 bytes of eight records as vectors of tiles: low and high nibbles of four quads of bytes.
inline void transpose(const uint8_t* records, int64_t record_bytes, __m256i (&low)[4],
                      __m256i (&high)[4]) {
  const __m256i nibble = _mm256_set1_epi8(15);
  __m256i quads[2][4];
  for (int half = 0; half < 2; ++half) {
    __m256i r[4];
    for (int i = 0; i < 4; ++i, records += record_bytes) {
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

inline void channels_to_tiles(const uint8_t* panel, int64_t outputs, int64_t groups,
                              uint8_t* tiles) {
  const int64_t record_bytes = outputs / 2;
  const int64_t tile_bytes = groups * group_bytes(4);
  const auto write = [](uint8_t* to, __m256i x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x);
  };
  for (int64_t g = 0; g < groups; ++g, panel += panel_group_bytes(outputs)) {
    uint8_t* const to = tiles + g * group_bytes(4);
    for (int64_t v = 0; v < kGroup / 8; ++v) {
      for (int64_t part = 0; part < record_bytes; part += 32) {
        __m256i low[4], high[4];
        transpose(panel + 8 * v * record_bytes + part, record_bytes, low, high);
        for (int j = 0; j < 4; ++j) {
          if (outputs == kPanel) {  // 16 outputs in two parts, a tile a nibble
            write(to + 2 * j * tile_bytes + 64 * v + part, low[j]);
            write(to + (2 * j + 1) * tile_bytes + 64 * v + part, high[j]);
          } else {  // 8 outputs, half a tile a nibble
            write(to + j * tile_bytes + 64 * v, low[j]);
            write(to + j * tile_bytes + 64 * v + 32, high[j]);
          }
        }
      }
    }
    const uint8_t* const factors = panel + kGroup * record_bytes;
    for (int64_t t = 0; t < outputs / kTile; ++t) {
      uint8_t* const in_tile = to + t * tile_bytes + quant_bytes(4);
      memcpy(in_tile, factors + 2 * t * kTile, 2 * kTile);
      memcpy(in_tile + 2 * kTile, factors + 2 * (outputs + t * kTile), 2 * kTile);
    }
  }
}

#endif

constexpr ChannelKernels channel_kernels = {list_channels, multiply_channels, channels_to_tiles};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
