// y[o] += (sum_i +-q[i]) scale w_scale[o]
//
// The signs of four inputs choose one of the 16 sums that these can have. AVX-512 looks 64 of them
// up with one VPERMB (four tables in a register, for the four bytes of an output) and adds the four
// of an output with one VPDPBUSD.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/products/matmul-inl.h"
#include "kernels/selection/signs.h"
#include "simd/target.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// The 16 sums of four inputs: +q where the bit is set, else -q.
inline void sign_table(const int32_t* q, uint8_t* table) {
  const int32_t none = kSignBias - q[0] - q[1] - q[2] - q[3];
  for (int32_t b = 0; b < 16; ++b) {
    const int32_t set =
        (b & 1) * q[0] + (b >> 1 & 1) * q[1] + (b >> 2 & 1) * q[2] + (b >> 3) * q[3];
    table[b] = static_cast<uint8_t>(none + 2 * set);
  }
}

inline void sign_tables(const float* z, int64_t k, uint8_t* tables, float* scale) {
  int32_t largest_bits = 0;  // floats that are not negative compare as their bits do
  for (int64_t i = 0; i < k; ++i) {
    int32_t bits;
    memcpy(&bits, z + i, sizeof(bits));
    bits &= 0x7fffffff;
    largest_bits = bits > largest_bits ? bits : largest_bits;
  }
  float largest;
  memcpy(&largest, &largest_bits, sizeof(largest));
  const bool finite = largest_bits < 0x7f800000;
  const bool zero = largest < 0x1p-110f || !finite;
  const float inverse = zero ? 0.0f : 31.0f / largest;
  *scale = finite ? (zero ? 0.0f : largest / 31.0f) : NAN;
  for (int64_t first = 0; first < k; first += kGroup, tables += kSignTables) {
    int32_t q[kGroup] = {};
    const int64_t count = k - first < kGroup ? k - first : kGroup;
    if (!zero) {
      for (int64_t i = 0; i < count; ++i)
        q[i] = static_cast<int32_t>(rintf(z[first + i] * inverse));
    }
    for (int64_t i = 0; i < kGroup; i += 4) sign_table(q + i, tables + 4 * i);
  }
}

#if defined(TAMIZ_VBMI)

/// sum[o] += the entries that the low nibbles of output o choose.
inline Ints add_chosen(Ints sum, Ints bytes, const uint8_t* tables) {
  const Ints nibble = all_ints(0x0f0f0f0f);
  const Ints table = all_ints(0x30201000);  // of byte i: entries 16 i to 16 i + 15
  constexpr int kAndOr = 0xea;              // (a & b) | c
  const Ints entries = _mm512_ternarylogic_epi32(bytes, nibble, table, kAndOr);
  return _mm512_dpbusd_epi32(sum, _mm512_permutexvar_epi8(entries, load_ints(tables)),
                             all_ints(0x01010101));
}

#elif defined(TAMIZ_VECTORS)

inline Ints add_chosen(Ints sum, Ints bytes, const uint8_t* tables) {
  const Ints nibbles = bits_and(bytes, all_ints(0x0f0f0f0f));
  Ints chosen = all_ints(0);
  for (int i = 0; i < 4; ++i) {
    const Ints found = look_up(tables + 16 * i, nibbles);
    chosen = bits_or(chosen, bits_and(found, all_ints(static_cast<int>(0xffu << 8 * i))));
  }
  return dot_pairs(sum, dot_bytes(chosen, all_ints(0x01010101)), all_words(1));
}

#endif

inline int64_t sign_tile(const SignArgs& a, int64_t i) { return a.list ? a.list[i] : i; }

#if defined(TAMIZ_VECTORS)

/// The sums of a strip of outputs, exactly. `ahead`: the same strip of a tile that is read later.
inline Ints sign_sums(const uint8_t* strip, const uint8_t* ahead, int64_t groups,
                      const uint8_t* tables) {
  const int bias = -static_cast<int>(8 * kSignBias * groups);
  Ints low = all_ints(bias), high = all_ints(0);
  for (int64_t g = 0; g < groups; ++g, tables += kSignTables) {
    prefetch_stream(ahead + g * kSignBytes);
    const Ints bytes = load_ints(strip + g * kSignBytes);
    low = add_chosen(low, bytes, tables);
    high = add_chosen(high, words_right<4>(bytes), tables + kSignTables / 2);
  }
  return ints_plus(low, high);
}

inline void add_signs(const SignArgs& a) {
  constexpr int64_t kAhead = 4;  // tiles: some thousand bytes, into the next page
  const int64_t bits = a.groups * kSignBytes, tile_bytes = sign_tile_bytes(a.groups);
  const Vec scale = broadcast(a.scale);
  for (int64_t i = 0; i < least(kAhead, a.tiles); ++i) {
    const uint8_t* const tile = a.weight + sign_tile(a, i) * tile_bytes;
    for (int64_t at = 0; at < bits; at += kSignBytes) prefetch(tile + at);
  }
  for (int64_t i = 0; i < a.tiles; ++i) {
    const int64_t t = sign_tile(a, i), later = sign_tile(a, least(i + kAhead, a.tiles - 1));
    const uint8_t* const tile = a.weight + t * tile_bytes;
    const uint8_t* const ahead = a.weight + later * tile_bytes;
    prefetch(ahead + bits);
    if (a.list) {
      prefetch(reinterpret_cast<const uint8_t*>(a.y + later * kTile));
      if (a.offset) prefetch(reinterpret_cast<const uint8_t*>(a.offset + later * kTile));
    }
    for (int s = 0; s < kStrips; ++s) {
      const int64_t at = 4 * kLanes * s;
      const Ints sum = sign_sums(tile + at, ahead + at, a.groups, a.tables);
      const Vec scales = load_halves(tile + bits + 2 * kLanes * s);
      const int64_t output = t * kTile + s * kLanes;
      const int64_t outputs = output < a.outputs ? least(a.outputs - output, kLanes) : 0;
      Vec y = load_partial(a.y + output, outputs);
      if (a.offset) y = y + load_partial(a.offset + output, outputs);
      store_partial(a.y + output, fma(to_float(sum) * scale, scales, y), outputs);
    }
  }
}

#else

/// The sum of output o of a tile.
inline int sign_sum(const uint8_t* tile, int64_t groups, const uint8_t* tables, int64_t o) {
  int sum = 0;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t i = 0; i < 4; ++i) {
      const uint8_t both = tile[g * kSignBytes + 4 * o + i];
      const uint8_t* const low = tables + g * kSignTables + 16 * i;
      sum += low[both & 15] + low[kSignTables / 2 + (both >> 4)] - 2 * kSignBias;
    }
  }
  return sum;
}

inline void add_signs(const SignArgs& a) {
  for (int64_t i = 0; i < a.tiles; ++i) {
    const int64_t t = sign_tile(a, i);
    const uint8_t* const tile = a.weight + t * sign_tile_bytes(a.groups);
    for (int64_t o = 0; o < kTile && t * kTile + o < a.outputs; ++o) {
      const int64_t output = t * kTile + o;
      const int sum = sign_sum(tile, a.groups, a.tables, o);
      const float scale = half_to_float(tile + a.groups * kSignBytes + 2 * o);
      const float y = a.y[output] + (a.offset ? a.offset[output] : 0.0f);
      a.y[output] = fmaf(static_cast<float>(sum) * a.scale, scale, y);
    }
  }
}

#endif

constexpr SignKernels sign_kernels = {sign_tables, add_signs};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
