// The product over active inputs as its equation reads, for any CPU: see kernels/channels.h.
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/channels.h"

namespace tamiz {
namespace TAMIZ_TARGET {

inline int channel_quant(const uint8_t* record, int64_t outputs, int64_t o) {
  int shift;
  const int64_t byte = channel_byte(outputs, o, &shift);
  return record[byte] >> shift & 15;
}

inline void multiply_channels(const ChannelArgs& a) {
  const int64_t record_bytes = a.outputs / 2;
  ActiveInputs list = a.x;
  for (const ActiveGroup* g = a.x.groups; g < a.x.groups + a.listed; ++g) {
    const auto factor = [&](int64_t b) {
      return half_to_float(a.panel + channel_factor(a.outputs, a.groups, g->group, b));
    };
    for (int64_t o = 0; o < a.outputs; ++o) {
      int32_t sum = 0;
      for (int i = 0; i < g->count; ++i) {
        const uint8_t* record = a.panel + list.records[i] / (kWholeRecord / record_bytes);
        sum += (256 * list.high[i] + list.low[i]) * channel_quant(record, a.outputs, o);
      }
      const float y = fmaf(static_cast<float>(sum) * g->scale, factor(2 * o), a.y[o]);
      a.y[o] = fmaf(g->sum, factor(2 * (a.outputs + o)), y);
    }
    list.pass(g->count);
  }
}

inline void channels_to_tiles(const uint8_t* panel, int64_t outputs, int64_t groups,
                              uint8_t* tiles) {
  const int64_t record_bytes = outputs / 2;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t t = 0; t < outputs / kTile; ++t) {
      uint8_t* to = tiles + (t * groups + g) * group_bytes(4);
      for (int64_t i = 0; i < kGroup; ++i) {
        for (int64_t o = 0; o < kTile; ++o) {
          const int q = channel_quant(panel + channel_record(groups, g, i) * record_bytes, outputs,
                                      t * kTile + o);
          uint8_t* both = to + i / 8 * 64 + 4 * o + i % 4;
          *both = static_cast<uint8_t>(i % 8 < 4 ? q : *both | q << 4);
        }
      }
      for (int f = 0; f < 2; ++f) {
        memcpy(to + quant_bytes(4) + 2 * kTile * f,
               panel + channel_factor(outputs, groups, g, 2 * (f * outputs + t * kTile)),
               2 * kTile);
      }
    }
  }
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
