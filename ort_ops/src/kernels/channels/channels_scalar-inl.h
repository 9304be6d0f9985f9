// The product over active inputs as its equation reads, for any CPU: see
// kernels/channels/channels.h.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/channels/channels.h"
#include "simd/target.h"

namespace tamiz {
namespace TAMIZ_TARGET {

inline int channel_quant(const uint8_t* record, int64_t outputs, int64_t o) {
  int shift;
  const int64_t byte = channel_byte(outputs, o, &shift);
  return record[byte] >> shift & 15;
}

inline void multiply_channels(const ChannelArgs& a) {
  const int64_t outputs = a.layout.outputs;
  const bool units = a.layout.scale_bits == 8;
  float in_units[kPanel] = {};
  float* const sums = units ? in_units : a.y;
  ActiveInputs list = a.x;
  for (const ActiveGroup* g = a.x.groups; g < a.x.groups + a.listed.groups; ++g) {
    const auto factor = [&](int64_t i) {
      const uint8_t* const at = a.panel + a.layout.factor(g->group, i * a.layout.scale_bits / 8);
      return units ? *at : half_to_float(at);
    };
    for (int64_t o = 0; o < outputs; ++o) {
      int32_t sum = 0;
      for (int i = 0; i < g->count; ++i) {
        const uint8_t* record =
            a.panel + list.records[i] / (kWholeRecord / a.layout.record_bytes());
        sum += (256 * list.high[i] + list.low[i]) * channel_quant(record, outputs, o);
      }
      const float y = fmaf(static_cast<float>(sum) * g->scale, factor(o), sums[o]);
      const float minimum = (units ? kMinimumStep : 1.0f) * factor(outputs + o);
      sums[o] = fmaf(g->sum, minimum, y);
    }
    list.pass(g->count);
  }
  for (int64_t o = 0; units && o < outputs; ++o) {
    const float unit = half_to_float(a.panel + a.layout.units() + 2 * o) * kUnitStep;
    a.y[o] = fmaf(sums[o], unit, a.y[o]);
  }
}

inline void channels_to_tiles(const uint8_t* panel, const PanelLayout& layout, uint8_t* tiles) {
  for (int64_t g = 0; g < layout.groups; ++g) {
    for (int64_t t = 0; t < layout.outputs / kTile; ++t) {
      uint8_t* to = tiles + t * tile_bytes(layout.groups, 4, layout.scale_bits) +
                    g * group_bytes(4, layout.scale_bits);
      for (int64_t i = 0; i < kGroup; ++i) {
        for (int64_t o = 0; o < kTile; ++o) {
          const int q = channel_quant(panel + layout.record(g, i), layout.outputs, t * kTile + o);
          uint8_t* both = to + i / 8 * 64 + 4 * o + i % 4;
          *both = static_cast<uint8_t>(i % 8 < 4 ? q : *both | q << 4);
        }
      }
    }
  }
  copy_factors(panel, layout, tiles);
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
