// y[o] += (sum_i +-q[i]) scale w_scale[o]
//
// The signs of four inputs choose one of the 16 sums that these can have. AVX-512 looks 64 of them
// up with one VPERMB (four tables in a register, for the four bytes of an output) and adds the four
// of an output with one VPDPBUSD.
//
// Included once per target, after matmul-inl.h.
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/signs.h"
#if defined(TAMIZ_AVX512) || defined(TAMIZ_AVX2)
#include "kernels/simd_int.h"
#endif

namespace tamiz {
namespace TAMIZ_TARGET {

inline void sign_tables(const float* z, int64_t k, uint8_t* tables, float* scale) {
  float largest = 0.0f;
  bool finite = true;
  for (int64_t i = 0; i < k; ++i) {
    finite = finite && isfinite(z[i]);
    largest = fmaxf(largest, fabsf(z[i]));
  }
  const bool zero = largest < 0x1p-110f || !finite;
  const float inverse = zero ? 0.0f : 31.0f / largest;
  *scale = finite ? (zero ? 0.0f : largest / 31.0f) : NAN;
  for (int64_t first = 0; first < group_count(k) * kGroup; first += 4, tables += 16) {
    int sums[16];
    sums[0] = kSignBias;
    for (int64_t j = 0; j < 4; ++j) {
      const int64_t i = first + j;
      const int q = i < k && !zero ? static_cast<int>(rintf(z[i] * inverse)) : 0;
      for (int b = 0; b < 1 << j; ++b) {
        sums[b + (1 << j)] = sums[b] + q;
        sums[b] -= q;
      }
    }
    for (int b = 0; b < 16; ++b) tables[b] = static_cast<uint8_t>(sums[b]);
  }
}

#if defined(TAMIZ_AVX512)

/// sum[o] += the entries that the low nibbles of output o choose.
inline Ints add_chosen(Ints sum, Ints bytes, const uint8_t* tables) {
  const Ints nibble = all_ints(0x0f0f0f0f);
  const Ints table = all_ints(0x30201000);  // of byte i: entries 16 i to 16 i + 15
  constexpr int kAndOr = 0xea;              // (a & b) | c
  const Ints entries = _mm512_ternarylogic_epi32(bytes, nibble, table, kAndOr);
  return _mm512_dpbusd_epi32(sum, _mm512_permutexvar_epi8(entries, load_ints(tables)),
                             all_ints(0x01010101));
}

#elif defined(TAMIZ_AVX2)

inline Ints add_chosen(Ints sum, Ints bytes, const uint8_t* tables) {
  const Ints nibbles = bits_and(bytes, all_ints(0x0f0f0f0f));
  Ints chosen = all_ints(0);
  for (int i = 0; i < 4; ++i) {
    // A set high bit gives 0: only byte i of an output looks into table i.
    const Ints others = all_ints(static_cast<int>(0x80808080u & ~(0x80u << 8 * i)));
    const Ints table = _mm256_broadcastsi128_si256(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(tables + 16 * i)));
    const Ints found = _mm256_shuffle_epi8(table, _mm256_or_si256(nibbles, others));
    chosen = _mm256_or_si256(chosen, found);
  }
  const Ints pairs = _mm256_maddubs_epi16(chosen, all_ints(0x01010101));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, all_words(1)));
}

#endif

#if defined(TAMIZ_AVX512) || defined(TAMIZ_AVX2)

/// Tiles that are summed at a time. They lie far apart, as several streams from memory are faster
/// than one.
constexpr int kStreams = kLanes / 4;
constexpr int64_t kAhead = 1280;  // bytes of a stream that are asked for early

/// The sums of one plane of a strip of every tile, exactly.
inline void plane_sums(const uint8_t* const (&plane)[kStreams], int64_t groups,
                       const uint8_t* tables, Ints (&sum)[kStreams]) {
  Ints low[kStreams], high[kStreams];
  for (int t = 0; t < kStreams; ++t) {
    low[t] = all_ints(-static_cast<int>(8 * kSignBias * groups));
    high[t] = all_ints(0);
  }
  for (int64_t g = 0; g < groups; ++g, tables += kSignTables) {
    for (int t = 0; t < kStreams; ++t) {
      const uint8_t* const at = plane[t] + g * kSignBytes;
      prefetch(at + kAhead);
      const Ints bytes = load_ints(at);
      low[t] = add_chosen(low[t], bytes, tables);
      high[t] = add_chosen(high[t], words_right<4>(bytes), tables + kSignTables / 2);
    }
  }
  for (int t = 0; t < kStreams; ++t) sum[t] = ints_plus(low[t], high[t]);
}

/// y of a strip of tile t += the sums.
inline void add_strip(const SignArgs& a, int64_t t, int strip, Ints sum, const uint8_t* scales) {
  const int64_t first = t * kTile + strip * kLanes;
  const int64_t outputs = least(a.outputs - first, kLanes);
  if (outputs <= 0) return;
  const size_t bytes = static_cast<size_t>(outputs) * sizeof(float);
  alignas(64) float y[kLanes] = {};
  memcpy(y, a.y + first, bytes);
  store(y, fma(to_float(sum) * broadcast(a.scale), load_halves(scales), load(y)));
  memcpy(a.y + first, y, bytes);
}

inline void add_signs(const SignArgs& a) {
  const int64_t plane_bytes = a.groups * kSignBytes;
  const int64_t stream = (a.tiles + kStreams - 1) / kStreams;  // tiles of one
  for (int64_t t = 0; t < stream; ++t) {
    const uint8_t* tile[kStreams];
    for (int i = 0; i < kStreams; ++i) {
      tile[i] = a.weight + least(t + i * stream, a.tiles - 1) * sign_tile_bytes(a.groups, a.planes);
    }
    for (int s = 0; s < kTile / kLanes; ++s) {
      const uint8_t* plane[kStreams];
      for (int i = 0; i < kStreams; ++i) plane[i] = tile[i] + 4 * kLanes * s;
      Ints sum[kStreams];
      plane_sums(plane, a.groups, a.tables, sum);
      if (a.planes == 2) {
        for (int i = 0; i < kStreams; ++i) plane[i] += plane_bytes;
        Ints small[kStreams];
        plane_sums(plane, a.groups, a.tables, small);
        for (int i = 0; i < kStreams; ++i) sum[i] = ints_plus(ints_plus(sum[i], sum[i]), small[i]);
      }
      for (int i = 0; i < kStreams && t + i * stream < a.tiles; ++i) {
        add_strip(a, t + i * stream, s, sum[i], tile[i] + a.planes * plane_bytes + 2 * kLanes * s);
      }
    }
  }
}

#else

/// The sum of one plane for output o of a tile.
inline int plane_sum(const uint8_t* plane, int64_t groups, const uint8_t* tables, int64_t o) {
  int sum = 0;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t i = 0; i < 4; ++i) {
      const uint8_t both = plane[g * kSignBytes + 4 * o + i];
      const uint8_t* const low = tables + g * kSignTables + 16 * i;
      sum += low[both & 15] + low[kSignTables / 2 + (both >> 4)] - 2 * kSignBias;
    }
  }
  return sum;
}

inline void add_signs(const SignArgs& a) {
  const int64_t plane_bytes = a.groups * kSignBytes;
  for (int64_t output = 0; output < a.outputs; ++output) {
    const int64_t o = output % kTile;
    const uint8_t* const tile = a.weight + output / kTile * sign_tile_bytes(a.groups, a.planes);
    int sum = plane_sum(tile, a.groups, a.tables, o);
    if (a.planes == 2) sum = 2 * sum + plane_sum(tile + plane_bytes, a.groups, a.tables, o);
    const float scale = half_to_float(tile + a.planes * plane_bytes + 2 * o);
    a.y[output] = fmaf(static_cast<float>(sum) * a.scale, scale, a.y[output]);
  }
}

#endif

constexpr SignKernels sign_kernels = {sign_tables, add_signs};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
