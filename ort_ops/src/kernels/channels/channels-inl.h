// y[o] += sum_g ( (sum over the active i of xq[g,i] wq[o,g,i]) xs[g] ws[o,g] + xsum[g] wmin[o,g] )
//
// Four records at a time: bytes of the same outputs are brought side by side (unpack), so that a
// 32-bit lane holds four inputs of one output, and multiplied with the high and the low bytes of
// the activations. kernels/channels/channels.h shows how the weight lies.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/channels/channels.h"
#include "simd/target.h"
#if defined(TAMIZ_AVX512)
#include "kernels/channels/channels_avx512-inl.h"
#elif defined(TAMIZ_VECTORS)
#include "kernels/channels/channels_parts-inl.h"
#else
#include "kernels/channels/channels_scalar-inl.h"
#endif
#include "kernels/channels/channels_tiles-inl.h"

namespace tamiz {
namespace TAMIZ_TARGET {

// ---- the active inputs ----

/// Writes a group's active inputs to position `at` of the list; returns how many there are.
/// `quants`: of every four inputs in the order 0, 2, 1, 3. `records`: of all of the group's inputs.
#if defined(TAMIZ_VBMI)
inline int32_t list_group(const int16_t* quants, const uint32_t* records, const ActiveInputs& to,
                          int64_t at) {
  __m512i q = _mm512_loadu_si512(quants);
  q = _mm512_shufflehi_epi16(_mm512_shufflelo_epi16(q, 0xd8), 0xd8);
  const __mmask32 active = _mm512_test_epi16_mask(q, q);
  const int32_t count = __builtin_popcount(active);
  const auto lower = static_cast<__mmask16>(active), upper = static_cast<__mmask16>(active >> 16);
  const uint32_t first = records[active ? __builtin_ctz(active) : 0];
  uint32_t* const places = to.records + at;
  _mm512_storeu_si512(places, _mm512_maskz_compress_epi32(lower, _mm512_load_si512(records)));
  _mm512_storeu_si512(places + __builtin_popcount(lower),
                      _mm512_maskz_compress_epi32(upper, _mm512_load_si512(records + 16)));
  _mm512_storeu_si512(places + count, _mm512_set1_epi32(static_cast<int>(first)));
  q = _mm512_maskz_compress_epi16(active, q);
  const __m512i high = _mm512_srai_epi16(_mm512_add_epi16(q, _mm512_set1_epi16(128)), 8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.high + at), _mm512_cvtepi16_epi8(high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.low + at), _mm512_cvtepi16_epi8(q));
  return count;
}
#else
inline int32_t list_group(const int16_t* quants, const uint32_t* records, const ActiveInputs& to,
                          int64_t at) {
  constexpr int kOrder[] = {0, 2, 1, 3};
  memset(to.high + at, 0, kGroup);
  memset(to.low + at, 0, kGroup);
  int32_t count = 0;
  for (int i = 0; i < kGroup; ++i) {
    const int quant = quants[i / 4 * 4 + kOrder[i % 4]];
    if (quant == 0) continue;
    to.records[at + count] = records[i];
    to.high[at + count] = static_cast<int8_t>((quant + 128) >> 8);
    to.low[at + count] = static_cast<int8_t>(quant & 255);
    ++count;
  }
  for (int64_t i = at + count; i < at + kGroup; ++i) to.records[i] = to.records[at];
  return count;
}
#endif

inline Listed list_channels(const QuantRows& x, int64_t row, bool masked, int scale_bits,
                            const ActiveInputs& to) {
  const PanelLayout layout{kPanel, x.groups, scale_bits};
  const uint32_t step = static_cast<uint32_t>(layout.record(1, 0));
  alignas(64) uint32_t records[kGroup];
  for (int i = 0; i < kGroup; ++i) records[i] = static_cast<uint32_t>(layout.record(0, i));
  int64_t groups = 0, active = 0;
  int64_t inputs = 0;
  for (int64_t g = 0; g < x.groups; ++g) {
    if (g > 0) {
      for (int i = 0; i < kGroup; ++i) records[i] += step;
    }
    const int64_t at = x.at(row, g);
    if (masked && x.kept[at] == 0) continue;
    const int32_t count = list_group(x.quants + at * kGroup, records, to, inputs);
    to.groups[groups++] = {static_cast<int32_t>(g), count, x.scales[at], x.sums[at]};
    active += count;
    inputs += ActiveInputs::places(count);
  }
  for (int64_t i = 0; i < ActiveInputs::kMostAhead; ++i) {
    to.records[inputs + i] = inputs > 0 ? to.records[0] : 0;
  }
  return listed(groups, active, x.groups * kGroup);
}

#if defined(TAMIZ_VECTORS)

// ---- the product ----

/// y += the listed groups.
template <class P, bool Units>
__attribute__((always_inline)) inline void add_groups(const PanelAt<P, Units>& panel,
                                                      const ChannelArgs& a, float* y) {
  constexpr int64_t kGroupsAhead = 4;
  for (int64_t g = 0; g < kGroupsAhead && g < a.listed.groups; ++g) {
    panel.prefetch_factors(a.x.groups[g].group);
  }
  prefetch_records<P>(a.panel, a.x.records, a.listed.ahead);
  ActiveInputs list = a.x;
  for (int64_t g = 0; g < a.listed.groups; ++g) {
    if (g + kGroupsAhead < a.listed.groups)
      panel.prefetch_factors(a.x.groups[g + kGroupsAhead].group);
    multiply_group(panel, list, list.records + a.listed.ahead, a.x.groups[g], y);
    list.pass(a.x.groups[g].count);
  }
}

template <class P>
inline void multiply_panel(const ChannelArgs& a) {
  if (a.layout.scale_bits == 16)
    return add_groups(PanelAt<P, false>{a.panel, a.layout.groups}, a, a.y);
  const PanelAt<P, true> panel{a.panel, a.layout.groups};
  alignas(64) float sums[P::kOutputs] = {};
  for (int64_t o = 0; o < P::kOutputs; o += 32) prefetch(panel.factor(panel.groups, 2 * o));
  add_groups(panel, a, sums);
  for (int64_t o = 0; o < P::kOutputs; o += kLanes) {
    store(a.y + o, fma(load(sums + o), panel.units(o), load(a.y + o)));
  }
}

inline void multiply_channels(const ChannelArgs& a) {
  if (a.layout.outputs == kPanel) {
    multiply_panel<WholePanel>(a);
  } else {
    multiply_panel<HalvedPanel>(a);
  }
}

#endif

constexpr ChannelKernels channel_kernels = {list_channels, multiply_channels, channels_to_tiles};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
