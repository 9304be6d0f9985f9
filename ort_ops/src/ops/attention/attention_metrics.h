// The numbers of the metrics of the op Attention, in the order of key_choice_metrics().
#pragma once

#include <cstddef>

namespace tamiz {

struct AttentionMetric {
  enum Number : size_t {
    pack_enabled,
    pack_active,
    pack_attended,
    pack_visible,
    pack_mode,
    pack_popcnt,
    pack_density,
    event_enabled,
    event_topk_kept,
    event_channels,
    event_quality_gap,
    event_gap_checks,
    event_disabled
  };
};

}  // namespace tamiz
