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
  for (const ActiveGroup* g = a.x.groups; g < a.x.groups + a.groups; ++g) {
    const uint8_t* group = a.panel + g->group * panel_group_bytes(a.outputs);
    const uint8_t* factors = group + kGroup * record_bytes;
    for (int64_t o = 0; o < a.outputs; ++o) {
      int32_t sum = 0;
      for (int i = 0; i < g->count; ++i) {
        const uint8_t* record = a.panel + list.records[i] / (kWholeRecord / record_bytes);
        sum += (256 * list.high[i] + list.low[i]) * channel_quant(record, a.outputs, o);
      }
      const float scale = half_to_float(factors + 2 * o);
      const float minimum = half_to_float(factors + 2 * (a.outputs + o));
      const float y = fmaf(static_cast<float>(sum) * g->scale, scale, a.y[o]);
      a.y[o] = fmaf(g->sum, minimum, y);
    }
    list.pass(g->count);
  }
}

inline void channels_to_tiles(const uint8_t* panel, int64_t outputs, int64_t groups,
                              uint8_t* tiles) {
  const int64_t record_bytes = outputs / 2;
  for (int64_t g = 0; g < groups; ++g, panel += panel_group_bytes(outputs)) {
    const uint8_t* factors = panel + kGroup * record_bytes;
    for (int64_t t = 0; t < outputs / kTile; ++t) {
      uint8_t* to = tiles + (t * groups + g) * group_bytes(4);
      for (int64_t i = 0; i < kGroup; ++i) {
        for (int64_t o = 0; o < kTile; ++o) {
          const int q = channel_quant(panel + i * record_bytes, outputs, t * kTile + o);
          uint8_t* both = to + i / 8 * 64 + 4 * o + i % 4;
          *both = static_cast<uint8_t>(i % 8 < 4 ? q : *both | q << 4);
        }
      }
      memcpy(to + quant_bytes(4), factors + 2 * t * kTile, 2 * kTile);
      memcpy(to + quant_bytes(4) + 2 * kTile, factors + 2 * (outputs + t * kTile), 2 * kTile);
    }
  }
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
