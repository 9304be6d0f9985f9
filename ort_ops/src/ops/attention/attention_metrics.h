// The metrics of the op Attention: their numbers and their declarations.
#pragma once

#include "engine/op_spec.h"

namespace tamiz {

#define ATTENTION_METRICS(METRIC)                                                                  \
  METRIC(pack_enabled, "pack.enabled", "calls",                                                    \
         "Decode steps of attention that keep sketches of the keys.")                              \
  METRIC(pack_active, "pack.active", "calls", "Decode steps in which the filter picked the keys.") \
  METRIC(pack_attended, "pack.attended", "keys",                                                   \
         "Attended keys, summed over KV heads and pack.enabled calls.")                            \
  METRIC(pack_visible, "pack.visible", "keys",                                                     \
         "Visible keys, summed over KV heads and pack.enabled calls.")                             \
  METRIC(pack_mode, "pack.mode", "planes",                                                         \
         "Bits per sketched element, summed over pack.enabled calls.")                             \
  METRIC(pack_popcnt, "pack.popcnt", "calls",                                                      \
         "Calls of pack.active in which the query was packed, too.")                               \
  METRIC(pack_density, "pack.density", "share",                                                    \
         "Attended keys divided by visible keys, summed over pack.enabled calls.")                 \
  METRIC(event_enabled, "event.enabled", "steps",                                                  \
         "Decode steps that attended to a part of the keys.")                                      \
  METRIC(event_topk_kept, "event.topk_kept", "keys",                                               \
         "Keys attended exactly in event.enabled steps, summed over KV heads.")                    \
  METRIC(event_channels, "event.channels", "keys",                                                 \
         "Keys of event.enabled steps, summed over KV heads.")                                     \
  METRIC(event_quality_gap, "event.quality_gap", "fraction", "Sum of the measured gaps.")          \
  METRIC(event_gap_checks, "event.gap_checks", "checks", "Number of measured gaps.")               \
  METRIC(event_disabled, "event.disabled", "sequences",                                            \
         "Sequences that returned to all keys because of a gap.")

TAMIZ_METRICS(AttentionMetric, ATTENTION_METRICS);

}  // namespace tamiz
