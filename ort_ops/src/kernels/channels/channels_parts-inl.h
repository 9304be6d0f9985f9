// One group of a panel of kernels/channels/channels.h with vectors of 32 bytes: half of their
// outputs at a time.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/channels/channels.h"
#include "kernels/channels/channels_panel-inl.h"
#include "simd/target.h"

#if defined(TAMIZ_VECTORS) && !defined(TAMIZ_AVX512)

namespace tamiz {
namespace TAMIZ_TARGET {

template <int64_t Outputs>
struct PanelOf {
  static constexpr int64_t kOutputs = Outputs;
  static constexpr int64_t kRecord = Outputs / 2;
  static constexpr int64_t kParts = kRecord / static_cast<int64_t>(sizeof(Ints));
};
using WholePanel = PanelOf<kPanel>;
using HalvedPanel = PanelOf<kHalfPanel>;

/// Four activations in every lane.
inline Ints activations(const int8_t* x) {
  int word;
  memcpy(&word, x, sizeof(word));
  return all_ints(word);
}

/// The lower or the upper quarters of every 16 bytes of a and b, byte by byte in turn.
template <bool Upper>
inline Ints interleave_bytes(Ints a, Ints b) {
  return Upper ? high_bytes(a, b) : low_bytes(a, b);
}

/// 256 high + low, of sums of words.
inline Ints joined(Ints high, Ints low) {
  return dot_pairs(dot_pairs(all_ints(0), low, all_words(1)), high, all_words(256));
}

/// Sums of the low and the high nibbles of two vectors over the `count` inputs that `list` begins
/// with; the panel begins with the part of a record that is meant. `dot_bytes` has them in words,
/// which hold the eight sums of a group: 8 * 2 * 15 * 128 < 2^15.
template <class P, bool Upper>
inline void sum_inputs(const uint8_t* panel, const ActiveInputs& list, int32_t count,
                       Ints (&strips)[4]) {
  Ints high[4], low[4];
  for (int s = 0; s < 4; ++s) high[s] = low[s] = all_ints(0);
  const Ints nibble = all_words(0x0f0f);
  for (int32_t i = 0; i < count; i += 4) {
    const uint32_t* const records = list.records + i;
    Ints r[4];
    for (int c = 0; c < 4; ++c) r[c] = load_ints(panel + record_at<P>(records[c]));
    const Ints ab = interleave_bytes<Upper>(r[0], r[1]);
    const Ints cd = interleave_bytes<Upper>(r[2], r[3]);
    const Ints bytes[] = {low_words(ab, cd), high_words(ab, cd)};
    const Ints x_high = activations(list.high + i);
    const Ints x_low = activations(list.low + i);
    for (int s = 0; s < 4; ++s) {
      const Ints w = bits_and(s % 2 ? words_right<4>(bytes[s / 2]) : bytes[s / 2], nibble);
      high[s] = words_plus(high[s], dot_bytes(w, x_high));
      low[s] = words_plus(low[s], dot_bytes(w, x_low));
    }
  }
  for (int s = 0; s < 4; ++s) strips[s] = joined(high[s], low[s]);
}

template <bool Upper, class P, bool Units>
inline void multiply_half(const PanelAt<P, Units>& panel, int64_t part, const ActiveInputs& list,
                          const ActiveGroup& x, float* y) {
  Ints strips[4];
  sum_inputs<P, Upper>(panel.data + part * static_cast<int64_t>(sizeof(Ints)), list, x.count,
                       strips);
  for (int s = 0; s < 4; ++s) {
    const int64_t o = (Upper ? P::kOutputs / 2 : 0) + (s * P::kParts + part) * kLanes;
    add_scaled(strips[s], x, panel, o, y);
  }
}

/// Adds a group, whose active inputs `list` begins with, to y.
template <class P, bool Units>
inline void multiply_group(const PanelAt<P, Units>& panel, const ActiveInputs& list,
                           const uint32_t* later, const ActiveGroup& x, float* y) {
  prefetch_records<P>(panel.data, later, list.places(x.count));
  for (int64_t part = 0; part < P::kParts; ++part) {
    multiply_half<false>(panel, part, list, x, y);
    multiply_half<true>(panel, part, list, x, y);
  }
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#endif
