// y[o] = bias[o] + sum_g ( (sum_i xq[g,i] wq[o,g,i]) xs[g] ws[o,g] + xsum[g] wmin[o,g] )
//
// The sums of some groups of an output are integers in lanes, where they are scaled. Those of as
// many outputs are then transposed: a lane is an output, and adds group after group. That is one
// chain of additions for all lanes; a chain of scalars for each output took a third of the time.
// kernels/chosen/chosen.h shows how the weight lies.
#pragma once

#include <math.h>
#include <stdint.h>

#include "kernels/chosen/chosen.h"
#include "kernels/products/matmul_block-inl.h"
#include "simd/simd_int.h"
#include "simd/target.h"

namespace tamiz {
namespace TAMIZ_TARGET {

/// What a record's sums start with and what they are multiplied with in the end.
struct RecordEnd {
  float start, unit, bias;

  RecordEnd(const ChosenArgs& a, const uint8_t* record, int32_t output)
      : start(a.bias ? a.bias[output] : 0.0f), unit(1.0f), bias(0.0f) {
    if (a.scale_bits != 8) return;
    bias = start;
    start = 0.0f;
    unit = half_to_float(record + record_bytes(a.groups, 8) - 2 * kTile) * kUnitStep;
  }
  float finish(const ChosenArgs& a, float y) const {
    return a.scale_bits == 8 ? fmaf(y, unit, bias) : y;
  }
};

#if defined(TAMIZ_VECTORS)

/// kLanes groups of as many records: their sums times the scales of x, their scales and minima.
struct RecordStrip {
  Ints scaled[kLanes] = {}, scales[kLanes] = {}, minima[kLanes] = {};

  /// Record `r`, whose groups are strip `s` of `chunk`.
  template <class W>
  TAMIZ_ALWAYS_INLINE void read(int r, const uint8_t* chunk, int s, const int32_t* pairs,
                                const float* x_scales) {
    Ints even = all_ints(0), odd = all_ints(0);  // two, as each product waits for the one before
#pragma GCC unroll 4
    for (int v = 0; v < W::kVectors; ++v) {
      const Ints raw = W::vector(chunk, s, v);
      const int32_t* const at = pairs + 4 * v * kChunk + s * kLanes;
      even = dot_pairs(even, W::template words<0>(raw), load_ints(at));
      odd = dot_pairs(odd, W::template words<1>(raw), load_ints(at + kChunk));
      even = dot_pairs(even, W::template words<2>(raw), load_ints(at + 2 * kChunk));
      odd = dot_pairs(odd, W::template words<3>(raw), load_ints(at + 3 * kChunk));
    }
    scaled[r] = float_bits(to_float(ints_plus(even, odd)) * load(x_scales + s * kLanes));
    scales[r] = float_bits(W::scales(chunk, s));
    minima[r] = float_bits(W::minima(chunk, s));
  }

  /// Adds the first `groups` groups to y, whose lanes are records.
  TAMIZ_ALWAYS_INLINE Vec add_to(Vec y, const float* x_sums, int64_t groups) {
    transpose(scaled);
    transpose(scales);
    transpose(minima);
    for (int g = 0; g < kLanes && g < groups; ++g) {
      y = fma(bits_float(scaled[g]), bits_float(scales[g]), y);
      y = fma(broadcast(x_sums[g]), bits_float(minima[g]), y);
    }
    return y;
  }
};

/// Prefetches chunk `c` of a record, with the first one also its end, where its unit lies.
template <class W>
TAMIZ_ALWAYS_INLINE void prefetch_chunk(const uint8_t* record, int64_t c, int64_t record_size) {
  const uint8_t* const chunk = record + c * W::kGroupBytes;
  for (int64_t line = 0; line < W::kGroupBytes; line += 64) prefetch(chunk + line);
  if (c == 0) prefetch(record + record_size - 1);
}

/// Prefetches the records that no call before has: it was on another thread.
template <class W>
TAMIZ_ALWAYS_INLINE void prefetch_first_records(const ChosenArgs& a) {
  const int64_t size = record_bytes(a.groups, a.scale_bits);
  for (int64_t i = 0; i < a.count && i < kRecordsAhead; ++i) {
    const uint8_t* const record = a.weight + a.outputs[i] * size;
    for (int64_t c = 0; c < chunk_count(a.groups); ++c) prefetch_chunk<W>(record, c, size);
  }
}

/// `count` outputs, at most kLanes, from number `first` on. What follows them is prefetched
/// meanwhile, a chunk before each that is multiplied: more at a time would wait for line buffers.
template <class W>
inline void multiply_records(const ChosenArgs& a, int64_t first, int count) {
  const int64_t size = record_bytes(a.groups, a.scale_bits);
  const uint8_t* record[kLanes];
  const uint8_t* later[kLanes];
  float lanes[kLanes] = {};
  for (int r = 0; r < count; ++r) {
    const int64_t coming = first + kRecordsAhead + r;
    record[r] = a.weight + a.outputs[first + r] * size;
    later[r] = a.weight + a.outputs[coming < a.listed ? coming : first + r] * size;
    lanes[r] = RecordEnd(a, record[r], a.outputs[first + r]).start;
  }
  Vec y = load(lanes);
  RecordStrip strip;
  for (int64_t c = 0; c < chunk_count(a.groups); ++c) {
    const int32_t* const pairs = a.x.pairs + c * kChunkPairs * kChunk;
    const float* const x_scales = a.x.scales + c * kChunk;
    for (int s = 0; s < kStrips; ++s) {
      for (int r = 0; r < count; ++r) {
        if (s == 0) prefetch_chunk<W>(later[r], c, size);
        strip.read<W>(r, record[r] + c * W::kGroupBytes, s, pairs, x_scales);
      }
      const int64_t g = c * kChunk + s * kLanes;
      y = strip.add_to(y, a.x.sums + g, a.groups - g);
    }
  }
  store(lanes, y);
  for (int r = 0; r < count; ++r) {
    const int32_t output = a.outputs[first + r];
    a.y[output] = RecordEnd(a, record[r], output).finish(a, lanes[r]);
  }
}

template <class W>
inline void multiply_all_records(const ChosenArgs& a) {
  prefetch_first_records<W>(a);
  for (int64_t i = 0; i < a.count; i += kLanes) {
    const int64_t left = a.count - i;
    multiply_records<W>(a, i, static_cast<int>(left < kLanes ? left : kLanes));
  }
}

inline void multiply_chosen(const ChosenArgs& a) {
  if (a.scale_bits == 8) return multiply_all_records<Int4InUnits>(a);
  multiply_all_records<Int4>(a);
}

#else

inline void multiply_chosen(const ChosenArgs& a) {
  const int64_t size = record_bytes(a.groups, a.scale_bits), chunk = group_bytes(4, a.scale_bits);
  for (int64_t n = 0; n < a.count; ++n) {
    const int32_t output = a.outputs[n];
    const uint8_t* const record = a.weight + output * size;
    const RecordEnd end(a, record, output);
    float y = end.start;
    for (int64_t g = 0; g < a.groups; ++g) {
      const uint8_t* const group = record + g / kChunk * chunk;
      const int32_t* const pairs = a.x.pairs + g / kChunk * kChunkPairs * kChunk + g % kChunk;
      int32_t sum = 0;
      for (int64_t i = 0; i < kGroup; ++i) {
        int16_t quants[2];
        memcpy(quants, pairs + place(i) / 2 * kChunk, sizeof(quants));
        sum += quants[place(i) % 2] * weight_quant(group, 4, g % kChunk, i);
      }
      const float scale = weight_scale(group, 4, g % kChunk, a.scale_bits);
      y = fmaf(static_cast<float>(sum) * a.x.scales[g], scale, y);
      y = fmaf(a.x.sums[g], weight_minimum(group, 4, g % kChunk, a.scale_bits), y);
    }
    a.y[output] = end.finish(a, y);
  }
}

#endif

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
