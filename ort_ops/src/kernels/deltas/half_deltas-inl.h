// y[r, o] += sum_i x[r, i] value[o, i]: a record of fp16 values, kernels/deltas/deltas.h.
//
// Expanded into a panel of floats in the L1 cache; then all rows pass over it.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/deltas/deltas.h"
#include "simd/simd.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// Values of one tile and group, input by input.
struct alignas(64) FloatPanel {
  float values[kGroup][kTile];

  float& at(int64_t place) { return values[place / 64 * 4 + place % 4][place % 64 / 4]; }
};

/// False: the record does not make sense.
inline bool expand_halves(const DeltaRecord& record, FloatPanel& to) {
  const uint8_t* at = record.payload;
  if (record.form == RecordForm::full) {
    if (record.bytes != 2 * kPlaces) return false;
    for (int64_t place = 0; place < kPlaces; ++place) to.at(place) = half_to_float(at + 2 * place);
    return true;
  }
  memset(to.values, 0, sizeof(to.values));
  if (record.form == RecordForm::places) {
    const int64_t count = place_count(16, record.bytes);
    if (4 * count != record.bytes) return false;
    for (int64_t i = 0; i < count; ++i) {
      const uint16_t place = read_u16(at + 2 * i);
      if (place >= kPlaces) return false;
      to.at(place) = half_to_float(at + 2 * (count + i));
    }
    return true;
  }
  if (record.form != RecordForm::bits || record.bytes < kPlaces / 8) return false;
  uint64_t stored[kPlaces / 64];
  memcpy(stored, at, sizeof(stored));
  int64_t count = 0;
  for (const uint64_t word : stored) count += __builtin_popcountll(word);
  if (record.bytes != kPlaces / 8 + 2 * count) return false;
  at += sizeof(stored);
  for (int v = 0; v < kPlaces / 64; ++v) {
    for (uint64_t left = stored[v]; left != 0; left &= left - 1, at += 2) {
      to.at(64 * v + __builtin_ctzll(left)) = half_to_float(at);
    }
  }
  return true;
}

inline bool multiply_halves(const DeltaRecord& record, const DeltaArgs& a, float (*y)[kTile]) {
  constexpr int kOrder[] = {0, 2, 1, 3};  // of every four inputs, in `QuantRows`
  FloatPanel panel;
  if (!expand_halves(record, panel)) return false;
  for (int64_t r = 0; r < a.rows; ++r) {
    const int64_t at = a.x.at(a.first_row + r, record.group);
    const int16_t* const quants = a.x.quants + at * kGroup;
    for (int64_t i = 0; i < kGroup; ++i) {
      const float x = a.x.scales[at] * static_cast<float>(quants[i / 4 * 4 + kOrder[i % 4]]);
      for (int64_t o = 0; o < kTile; o += kLanes) {
#if defined(TAMIZ_VECTORS)
        store(y[r] + o, fma(broadcast(x), load(panel.values[i] + o), load(y[r] + o)));
#else
        y[r][o] = fmaf(x, panel.values[i][o], y[r][o]);
#endif
      }
    }
  }
  return true;
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
