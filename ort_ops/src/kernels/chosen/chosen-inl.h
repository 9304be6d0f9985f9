// y[o] = bias[o] + sum_g ( (sum_i xq[g,i] wq[o,g,i]) xs[g] ws[o,g] + xsum[g] wmin[o,g] )
//
// The sums of 16 groups of an output are integers in lanes. They are scaled there and stored; the
// sum over groups then runs in order, in scalars, for some outputs at a time, as each waits for the
// one before. kernels/chosen/chosen.h shows how the weight lies.
#pragma once

#include <math.h>
#include <stdint.h>

#include "kernels/chosen/chosen.h"
#include "kernels/products/matmul_block-inl.h"
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

/// A chunk of one record: its sums times the scales of x, its scales and its minima, by group.
struct ChunkSums {
  alignas(64) float scaled[kChunk], scales[kChunk], minima[kChunk];

  template <class W>
  TAMIZ_ALWAYS_INLINE void read(const uint8_t* chunk, const int32_t* pairs, const float* x) {
#pragma GCC unroll 4
    for (int s = 0; s < kStrips; ++s) {
      Ints sum = all_ints(0);
#pragma GCC unroll 4
      for (int v = 0; v < W::kVectors; ++v) {
        const Ints raw = W::vector(chunk, s, v);
        const int32_t* const at = pairs + 4 * v * kChunk + s * kLanes;
        sum = dot_pairs(sum, W::template words<0>(raw), load_ints(at));
        sum = dot_pairs(sum, W::template words<1>(raw), load_ints(at + kChunk));
        sum = dot_pairs(sum, W::template words<2>(raw), load_ints(at + 2 * kChunk));
        sum = dot_pairs(sum, W::template words<3>(raw), load_ints(at + 3 * kChunk));
      }
      store(scaled + s * kLanes, to_float(sum) * load(x + s * kLanes));
      store(scales + s * kLanes, W::scales(chunk, s));
      store(minima + s * kLanes, W::minima(chunk, s));
    }
  }
};

/// Prefetches the records that the first batch multiplies, where no call before has: it was on
/// another thread.
template <class W>
inline void prefetch_first_records(const ChosenArgs& a) {
  const int64_t size = record_bytes(a.groups, a.scale_bits);
  for (int64_t i = 0; i < a.count && i < kRecordsTogether; ++i) {
    const uint8_t* const record = a.weight + a.outputs[i] * size;
    for (int64_t at = 0; at < size; at += 64) prefetch_stream(record + at);
  }
}

/// R outputs from number `first` on; what follows them is prefetched meanwhile.
template <class W, int R>
inline void multiply_records(const ChosenArgs& a, int64_t first) {
  const int64_t size = record_bytes(a.groups, a.scale_bits);
  const uint8_t* record[R];
  const uint8_t* next[R];
  float y[R];
  for (int r = 0; r < R; ++r) {
    const int64_t coming = first + kRecordsTogether + r;
    record[r] = a.weight + a.outputs[first + r] * size;
    next[r] = a.weight + a.outputs[coming < a.listed ? coming : first + r] * size;
    y[r] = RecordEnd(a, record[r], a.outputs[first + r]).start;
  }
  ChunkSums sums[R];
  for (int64_t c = 0; c < chunk_count(a.groups); ++c) {
    const int64_t left = a.groups - c * kChunk, groups = left < kChunk ? left : kChunk;
    for (int r = 0; r < R; ++r) {
      const int64_t at = c * W::kGroupBytes;
      for (int64_t line = 0; line < W::kGroupBytes; line += 64)
        prefetch_stream(next[r] + at + line);
      const int32_t* const pairs = a.x.pairs + c * kChunkPairs * kChunk;
      sums[r].template read<W>(record[r] + at, pairs, a.x.scales + c * kChunk);
    }
    for (int64_t g = 0; g < groups; ++g) {
      const float x_sum = a.x.sums[c * kChunk + g];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        y[r] = fmaf(sums[r].scaled[g], sums[r].scales[g], y[r]);
        y[r] = fmaf(x_sum, sums[r].minima[g], y[r]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    const int32_t output = a.outputs[first + r];
    a.y[output] = RecordEnd(a, record[r], output).finish(a, y[r]);
  }
}

template <class W>
inline void multiply_all_records(const ChosenArgs& a) {
  prefetch_first_records<W>(a);
  int64_t i = 0;
  for (; i + kRecordsTogether <= a.count; i += kRecordsTogether) {
    multiply_records<W, kRecordsTogether>(a, i);
  }
  for (; i < a.count; ++i) multiply_records<W, 1>(a, i);
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
