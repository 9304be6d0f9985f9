// y[o] += sum_g ( (sum over the active i of xq[g,i] wq[o,g,i]) xs[g] ws[o,g] + xsum[g] wmin[o,g] )
//
// Four records at a time: bytes of the same outputs are brought side by side (unpack), so that a
// 32-bit lane holds four inputs of one output, and multiplied with the high and the low bytes of
// the activations. kernels/channels.h shows how the weight lies.
//
// Included once per target, after kernels/matmul-inl.h.
#include <stdint.h>
#include <string.h>

#include "kernels/channels.h"
#if defined(TAMIZ_AVX512) || defined(TAMIZ_AVX2)
#include "kernels/channels_tiles-inl.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// Where a record of a list begins in a panel.
template <class P>
inline int64_t record_at(uint32_t record) {
  return record / (kWholeRecord / P::kRecord);
}

/// Asks for the next `count` records of a list.
template <class P>
__attribute__((always_inline)) inline void prefetch_records(const uint8_t* panel,
                                                            const uint32_t* records,
                                                            int64_t count) {
  for (int64_t i = 0; i < count; ++i) prefetch(panel + record_at<P>(records[i]));
}

/// y += what the sums of a group stand for.
inline void add_scaled(Ints sums, const ActiveGroup& x, const uint8_t* scales,
                       const uint8_t* minima, float* y) {
  const Vec scaled = to_float(sums) * broadcast(x.scale);
  const Vec sum = fma(scaled, load_halves(scales), load(y));
  store(y, fma(broadcast(x.sum), load_halves(minima), sum));
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz

#if defined(TAMIZ_AVX512)
#include "kernels/channels_avx512-inl.h"
#else
#include "kernels/channels_avx2-inl.h"
#endif
#else
#include "kernels/channels_scalar-inl.h"
#endif

namespace tamiz {
namespace TAMIZ_TARGET {

// ---- the active inputs ----

/// Writes a group's active inputs to position `at` of the list; returns how many there are.
/// `quants`: of every four inputs in the order 0, 2, 1, 3.
#if defined(TAMIZ_AVX512)
inline int32_t list_group(const int16_t* quants, int64_t group, const ActiveInputs& to,
                          int64_t at) {
  alignas(32) static constexpr uint8_t kInputs[kGroup] = {
      0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
      16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
  __m512i q = _mm512_loadu_si512(quants);
  q = _mm512_shufflehi_epi16(_mm512_shufflelo_epi16(q, 0xd8), 0xd8);
  const __mmask32 active = _mm512_test_epi16_mask(q, q);
  const __m256i first = _mm256_set1_epi8(static_cast<char>(active ? __builtin_ctz(active) : 0));
  const __m256i all = _mm256_load_si256(reinterpret_cast<const __m256i*>(kInputs));
  const __m256i inputs = _mm256_mask_compress_epi8(first, active, all);
  const __m512i begin = _mm512_set1_epi32(static_cast<int>(group * kGroupRecords * kWholeRecord));
  const auto store_records = [&](uint32_t* records, __m128i part) {
    const __m512i in_group = _mm512_slli_epi32(_mm512_cvtepu8_epi32(part), kWholeRecordBits);
    _mm512_storeu_si512(records, _mm512_add_epi32(begin, in_group));
  };
  store_records(to.records + at, _mm256_castsi256_si128(inputs));
  store_records(to.records + at + kGroup / 2, _mm256_extracti128_si256(inputs, 1));
  q = _mm512_maskz_compress_epi16(active, q);
  const __m512i high = _mm512_srai_epi16(_mm512_add_epi16(q, _mm512_set1_epi16(128)), 8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.high + at), _mm512_cvtepi16_epi8(high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.low + at), _mm512_cvtepi16_epi8(q));
  return __builtin_popcount(active);
}
#else
inline int32_t list_group(const int16_t* quants, int64_t group, const ActiveInputs& to,
                          int64_t at) {
  constexpr int kOrder[] = {0, 2, 1, 3};
  memset(to.high + at, 0, kGroup);
  memset(to.low + at, 0, kGroup);
  int32_t count = 0;
  for (int i = 0; i < kGroup; ++i) {
    const int quant = quants[i / 4 * 4 + kOrder[i % 4]];
    if (quant == 0) continue;
    to.records[at + count] = static_cast<uint32_t>((group * kGroupRecords + i) * kWholeRecord);
    to.high[at + count] = static_cast<int8_t>((quant + 128) >> 8);
    to.low[at + count] = static_cast<int8_t>(quant & 255);
    ++count;
  }
  for (int64_t i = at + count; i < at + kGroup; ++i) to.records[i] = to.records[at];
  return count;
}
#endif

inline int64_t list_channels(const QuantRows& x, int64_t row, bool masked, const ActiveInputs& to) {
  int64_t listed = 0;
  int64_t inputs = 0;
  for (int64_t g = 0; g < x.groups; ++g) {
    const int64_t at = x.at(row, g);
    if (masked && x.kept[at] == 0) continue;
    const int32_t count = list_group(x.quants + at * kGroup, g, to, inputs);
    to.groups[listed++] = {static_cast<int32_t>(g), count, x.scales[at], x.sums[at]};
    inputs += ActiveInputs::places(count);
  }
  const uint32_t panel = static_cast<uint32_t>(x.groups * kGroupRecords * kWholeRecord);
  for (int64_t i = 0; i < ActiveInputs::kAhead; ++i) {
    to.records[inputs + i] = inputs > 0 ? to.records[i] + panel : 0;
  }
  return listed;
}

#if defined(TAMIZ_AVX512) || defined(TAMIZ_AVX2)

// ---- the product ----

/// Scales and minima are asked for groups ahead: on the way lies the next page of 4 kB, whose
/// address is looked up early.
template <class P>
inline void multiply_panel(const ChannelArgs& a) {
  constexpr int64_t kGroupsAhead = 8;
  const auto prefetch_factors = [&](int64_t g) {
    const uint8_t* const group = a.panel + a.x.groups[g].group * panel_group_bytes(P::kOutputs);
    for (int64_t i = kGroup * P::kRecord; i < panel_group_bytes(P::kOutputs); i += 64) {
      prefetch(group + i);
    }
  };
  for (int64_t g = 0; g < kGroupsAhead && g < a.groups; ++g) prefetch_factors(g);
  prefetch_records<P>(a.panel, a.x.records, ActiveInputs::kAhead);
  ActiveInputs list = a.x;
  for (int64_t g = 0; g < a.groups; ++g) {
    if (g + kGroupsAhead < a.groups) prefetch_factors(g + kGroupsAhead);
    multiply_group<P>(a.panel, list, a.x.groups[g], a.y);
    list.pass(a.x.groups[g].count);
  }
}

inline void multiply_channels(const ChannelArgs& a) {
  if (a.outputs == kPanel) {
    multiply_panel<WholePanel>(a);
  } else {
    multiply_panel<HalvedPanel>(a);
  }
}

#endif

constexpr ChannelKernels channel_kernels = {list_channels, multiply_channels, channels_to_tiles};

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
