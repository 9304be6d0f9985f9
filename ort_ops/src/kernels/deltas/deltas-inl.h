// w[o, i] = value[o, i] where stored, base * hash(o, i) elsewhere: see kernels/deltas/deltas.h.
//
// A record is expanded into panels of 512 signed bytes in the L1 cache: the stored quants, where
// they are stored (for minima) and the hash where they are not. Then all rows pass over each panel.
// Full records are multiplied as they lie.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/deltas/deltas.h"
#include "kernels/deltas/half_deltas-inl.h"
#include "kernels/products/matmul-inl.h"
#include "simd/target.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// Signed bytes of one tile and group, in the order of the places, and a factor of each output.
struct alignas(64) BytePanel {
  int8_t quants[kPlaces];
  float factors[kTile];
};

/// A record's panels.
struct Expanded {
  BytePanel values, ones, hash;
};

// ---- hash ----

/// Bytes 2 * nibble - 15, 0 where something is stored. Plain code, so that the bits are those of
/// the scalar reference whatever vectors the compiler makes of it.
inline void hash_panel(uint64_t seed, int64_t tile, int64_t group, const int8_t* __restrict ones,
                       int8_t* __restrict to) {
  constexpr uint64_t kGamma = 0x9e3779b97f4a7c15u;
  constexpr int kRowPairs = kTile / 2;
  constexpr int kWords = kPlaces / 16;  // of 16 nibbles
  const uint64_t first =
      static_cast<uint64_t>(tile * kRowPairs) << 32 | static_cast<uint64_t>(group * (kGroup / 8));
  alignas(64) uint64_t z[kWords];
  for (uint64_t i = 0; i < kWords; ++i) {
    const uint64_t counter = first + ((i % kRowPairs) << 32) + i / kRowPairs;
    uint64_t state = seed + (counter + 1) * kGamma;
    state = (state ^ state >> 30) * 0xbf58476d1ce4e5b9u;
    state = (state ^ state >> 27) * 0x94d049bb133111ebu;
    z[i] = state ^ state >> 31;
  }
  alignas(64) uint8_t bytes[kPlaces / 2];
  memcpy(bytes, z, sizeof(bytes));
  for (int v = 0; v < kPlaces; v += 128) {
    for (int i = 0; i < 64; ++i) {
      const uint8_t both = bytes[v / 2 + i];
      // ones is 1 or 0, so ones - 1 is a mask
      const int low = (2 * (both & 15) - 15) & (ones[v + i] - 1);
      const int high = (2 * (both >> 4) - 15) & (ones[v + 64 + i] - 1);
      to[v + i] = static_cast<int8_t>(low);
      to[v + 64 + i] = static_cast<int8_t>(high);
    }
  }
}

// ---- records ----

/// Spreads the bytes of `packed` over the set bits of `stored`, 0 elsewhere; and a 1 for each.
#if defined(TAMIZ_VBMI)
inline void spread(uint64_t stored, const uint8_t* packed, int8_t* values, int8_t* ones) {
  const __m512i bytes = _mm512_loadu_si512(packed);
  _mm512_store_si512(values, _mm512_maskz_expand_epi8(stored, bytes));
  _mm512_store_si512(ones, _mm512_maskz_set1_epi8(stored, 1));
}
#elif defined(__BMI2__)
inline void spread(uint64_t stored, const uint8_t* packed, int8_t* values, int8_t* ones) {
  for (int i = 0; i < 64; i += 8) {
    const uint64_t ones_8 = _pdep_u64(stored >> i & 255, 0x0101010101010101u);
    uint64_t bytes;
    memcpy(&bytes, packed, sizeof(bytes));
    bytes = _pdep_u64(bytes, ones_8 * 255);
    memcpy(values + i, &bytes, sizeof(bytes));
    memcpy(ones + i, &ones_8, sizeof(ones_8));
    packed += __builtin_popcountll(ones_8);
  }
}
#else
inline void spread(uint64_t stored, const uint8_t* packed, int8_t* values, int8_t* ones) {
  for (int i = 0; i < 64; ++i) {
    ones[i] = stored >> i & 1;
    values[i] = ones[i] ? static_cast<int8_t>(*packed++) : int8_t{0};
  }
}
#endif

/// The values of 64 places; returns the bytes they take, -1 if these are more than are `left`.
inline int64_t expand_bits(uint64_t stored, const uint8_t* packed, int64_t left, int bits,
                           int8_t* values, int8_t* ones) {
  const int64_t count = __builtin_popcountll(stored);
  const int64_t taken = bits == 4 ? (count + 1) / 2 : count;
  if (taken > left) return -1;
  if (bits == 8) {
    spread(stored, packed, values, ones);
    return taken;
  }
  alignas(64) uint8_t quants[64];
  for (int i = 0; i < 32; ++i) {
    quants[2 * i] = packed[i] & 15;
    quants[2 * i + 1] = packed[i] >> 4;
  }
  spread(stored, quants, values, ones);
  return taken;
}

/// 16 fp16 numbers.
inline void load_factors(const uint8_t* halves, float* to) {
#if defined(TAMIZ_VECTORS)
  for (int o = 0; o < kTile; o += kLanes) store(to + o, load_halves(halves + 2 * o));
#else
  for (int o = 0; o < kTile; ++o) to[o] = half_to_float(halves + 2 * o);
#endif
}

inline bool expand_places(const uint8_t* places, int64_t count, int bits, Expanded& to) {
  const uint8_t* packed = places + 2 * count;
  memset(to.values.quants, 0, sizeof(to.values.quants));
  memset(to.ones.quants, 0, sizeof(to.ones.quants));
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t place = read_u16(places + 2 * i);
    if (place >= kPlaces) return false;
    const int quant = bits == 8 ? static_cast<int8_t>(packed[i]) : packed[i / 2] >> i % 2 * 4 & 15;
    to.values.quants[place] = static_cast<int8_t>(quant);
    to.ones.quants[place] = 1;
  }
  return true;
}

/// Scales, minima, quants and ones of a record that is not full. False: it does not make sense.
inline bool expand(const DeltaRecord& record, int bits, Expanded& to) {
  const uint8_t* const end = record.payload + record.bytes;
  const uint8_t* at = record.payload + factor_bytes(bits);
  if (at > end) return false;
  load_factors(record.payload, to.values.factors);
  if (bits == 4) load_factors(record.payload + 2 * kTile, to.ones.factors);
  if (record.form == RecordForm::places) {
    const int64_t count = place_count(bits, record.bytes);
    return 2 * count + (bits == 4 ? (count + 1) / 2 : count) == end - at &&
           expand_places(at, count, bits, to);
  }
  if (record.form != RecordForm::bits || end - at < kPlaces / 8) return false;
  uint64_t stored[kPlaces / 64];
  memcpy(stored, at, sizeof(stored));
  at += sizeof(stored);
  for (int v = 0; v < kPlaces / 64; ++v) {
    const int64_t taken = expand_bits(stored[v], at, end - at, bits, to.values.quants + 64 * v,
                                      to.ones.quants + 64 * v);
    if (taken < 0) return false;
    at += taken;
  }
  return at == end;
}

// ---- products ----

/// y[r][o] += the product of rows and one panel, or one full group.
#if defined(TAMIZ_VECTORS)

/// A BytePanel as `multiply_block` reads a weight.
struct SignedBytes : PlainGroups<sizeof(BytePanel)> {
  static constexpr bool kFromMemory = false;
  static constexpr int kVectors = 8;
  static constexpr bool kMinima = false;

  static Ints vector(const uint8_t* panel, int strip, int v) {
    return load_ints(panel + 64 * v + 4 * kLanes * strip);
  }
  template <int Pair>
  static Ints words(Ints x) {
    return signed_words_right<8>(Pair == 0 ? words_left<8>(x) : x);
  }
  static Vec scales(const uint8_t* panel, int strip) {
    return load(reinterpret_cast<const BytePanel*>(panel)->factors + kLanes * strip);
  }
  static Vec minima(const uint8_t*, int) { return broadcast(0.0f); }
};

template <class W, int R = kRowRegisters>
inline void pass_rows(const uint8_t* group_data, const DeltaArgs& a, int64_t group, int64_t row,
                      int64_t rows, float (*y)[kTile]) {
  if (rows < R) {
    if constexpr (R > 1) pass_rows<W, R - 1>(group_data, a, group, row, rows, y);
    return;
  }
  const uint8_t* const tile[1] = {group_data};
  const uint8_t* const next[1] = {group_data + W::kGroupBytes};
  multiply_block<W, R, 1>(tile, next, a.x, a.first_row + row, group, 1, y[row]);
}

template <class W>
inline void pass(const uint8_t* group_data, const DeltaArgs& a, int64_t group, float (*y)[kTile]) {
  for (int64_t row = 0; row < a.rows; row += kRowRegisters) {
    pass_rows<W>(group_data, a, group, row, least(a.rows - row, kRowRegisters), y);
  }
}

inline void multiply_panel(const BytePanel& panel, const DeltaArgs& a, int64_t group,
                           float (*y)[kTile]) {
  pass<SignedBytes>(reinterpret_cast<const uint8_t*>(&panel), a, group, y);
}

inline void multiply_full(const uint8_t* payload, const DeltaArgs& a, int64_t group,
                          float (*y)[kTile]) {
  if (a.bits == 4) return pass<Int4>(payload, a, group, y);
  pass<Int8>(payload, a, group, y);
}

#else

inline void multiply_panel(const BytePanel& panel, const DeltaArgs& a, int64_t group,
                           float (*y)[kTile]) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const int64_t at = a.x.at(a.first_row + r, group);
    for (int64_t o = 0; o < kTile; ++o) {
      const int32_t sum =
          dot_group(a.x, at, [&](int64_t i) { return panel.quants[64 * (i / 4) + 4 * o + i % 4]; });
      y[r][o] = fmaf(static_cast<float>(sum) * a.x.scales[at], panel.factors[o], y[r][o]);
    }
  }
}

inline void multiply_full(const uint8_t* payload, const DeltaArgs& a, int64_t group,
                          float (*y)[kTile]) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const int64_t at = a.x.at(a.first_row + r, group);
    for (int64_t o = 0; o < kTile; ++o) {
      const int32_t sum =
          dot_group(a.x, at, [&](int64_t i) { return weight_quant(payload, a.bits, o, i); });
      float& total = y[r][o];
      total =
          fmaf(static_cast<float>(sum) * a.x.scales[at], weight_scale(payload, a.bits, o), total);
      if (a.bits == 4) total = fmaf(a.x.sums[at], weight_minimum(payload, a.bits, o), total);
    }
  }
}

#endif

inline bool multiply_record(const DeltaRecord& record, const DeltaArgs& a, Expanded& expanded,
                            float (*y)[kTile]) {
  if (a.bits == 16) return multiply_halves(record, a, y);
  if (record.form == RecordForm::full) {
    if (record.bytes != group_bytes(a.bits)) return false;
    multiply_full(record.payload, a, record.group, y);
    return true;
  }
  if (!expand(record, a.bits, expanded)) return false;
  multiply_panel(expanded.values, a, record.group, y);
  if (a.bits == 4) multiply_panel(expanded.ones, a, record.group, y);
  if (a.base != 0.0f) {
    hash_panel(a.seed, a.tile, record.group, expanded.ones.quants, expanded.hash.quants);
    multiply_panel(expanded.hash, a, record.group, y);
  }
  return true;
}

inline int64_t multiply_deltas(const DeltaArgs& a) {
  alignas(64) float y[kRowBlock][kTile];
  Expanded expanded;
  for (int o = 0; o < kTile; ++o) expanded.hash.factors[o] = a.base;
  const size_t bytes = static_cast<size_t>(a.outputs) * sizeof(float);
  for (int64_t r = 0; r < a.rows; ++r) {
    memset(y[r], 0, sizeof(y[r]));
    memcpy(y[r], a.y + r * a.y_stride, bytes);
  }
  int64_t last_group = -1;
  int64_t bytes_read = 0;
  for (int64_t at = 0; at < a.bytes;) {
    if (a.bytes - at < kRecordHeader) return kDamaged;
    const DeltaRecord record = delta_record(a.records + at);
    at += kRecordHeader + record.bytes;
    if (at > a.bytes || record.group <= last_group || record.group >= a.x.groups) return kDamaged;
    last_group = record.group;
    bytes_read += kRecordHeader;
    if (a.skip && a.x.kept[a.x.at(a.first_row, record.group)] == 0) continue;
    bytes_read += record.bytes;
    if (!multiply_record(record, a, expanded, y)) return kDamaged;
  }
  for (int64_t r = 0; r < a.rows; ++r) memcpy(a.y + r * a.y_stride, y[r], bytes);
  return bytes_read;
}

/// (a, b) -> (a + b, a - b) at distance 1, 2, 4, ...
inline void hadamard(float* v, int64_t size) {
  for (int64_t half = 1; half < size; half *= 2) {
    for (int64_t i = 0; i < size; i += 2 * half) {
      for (int64_t j = i; j < i + half; ++j) {
        const float a = v[j];
        const float b = v[j + half];
        v[j] = a + b;
        v[j + half] = a - b;
      }
    }
  }
}

constexpr DeltaKernels delta_kernels = {multiply_deltas, hadamard};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
