// Kernels of the matrix product that computes chosen outputs only: weights [N outputs, K inputs] of
// 4 bits, packed by output, so that the weights of an output that nothing needs are never read.
//
//   y[o] = bias[o] + sum_g ( (sum_i xq[g,i] wq[o,g,i]) xs[g] ws[o,g] + xsum[g] wmin[o,g] )
//
// With scales and minima of 8 bits, which count units of their output: y[o] = bias[o] + unit[o] ...
//
// A record is one output. It lies as a tile of kernels/products/packing.h does, with groups in the
// place of outputs: a chunk has 16 groups of 32 inputs,
//
//   4 vectors of 64 bytes; byte 4j + i of vector v holds input 8v + i of group j in the low nibble
//   and input 8v + 4 + i in the high one; then 16 scales, then 16 minima, of fp16 or 8 bits
//
// and with scales of 8 bits 32 bytes follow the chunks, which begin with the fp16 number of the
// unit. So a lane of a vector sums a group, and nothing is summed across lanes.
//
// No STL in here.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/chosen/predict.h"
#include "kernels/products/matmul.h"

namespace tamiz {

struct Kernels;

constexpr int64_t kChunk = 16;               // groups
constexpr int64_t kRecordsAhead = 16;        // that are prefetched
constexpr int64_t kChunkPairs = kGroup / 2;  // of inputs of a group

constexpr int64_t chunk_count(int64_t groups) { return (groups + kChunk - 1) / kChunk; }
constexpr int64_t record_bytes(int64_t groups, int scale_bits) {
  return tile_bytes(chunk_count(groups), 4, scale_bits);
}

/// A quantised row, as records are multiplied with it. Groups are padded to whole chunks.
struct SpreadRow {
  int32_t* pairs;  // [chunks, 16 pairs of inputs, 16 groups], two quants each, in QuantRows' order
  float* scales;   // [chunks * 16]
  float* sums;     // [chunks * 16]
};

/// Spreads a row.
static inline void spread_row(const QuantRows& x, int64_t row, const SpreadRow& to) {
  const int64_t padded = chunk_count(x.groups) * kChunk;
  for (int64_t g = 0; g < padded; ++g) {
    int32_t* const pairs = to.pairs + g / kChunk * kChunkPairs * kChunk + g % kChunk;
    const bool exists = g < x.groups;
    const int64_t at = exists ? x.at(row, g) : 0;
    to.scales[g] = exists ? x.scales[at] : 0.0f;
    to.sums[g] = exists ? x.sums[at] : 0.0f;
    for (int64_t p = 0; p < kChunkPairs; ++p) {
      int32_t both = 0;
      if (exists) memcpy(&both, x.quants + at * kGroup + 2 * p, sizeof(both));
      pairs[p * kChunk] = both;
    }
  }
}

struct ChosenArgs {
  const uint8_t* weight;  // the record of output 0
  int64_t groups;
  int scale_bits;  // 16 or 8
  SpreadRow x;
  const int32_t* outputs;  // numbers of those to compute, then of those that are computed next
  int64_t count, listed;   // that are computed, and of both kinds
  const float* bias;       // [n] or null
  float* y;                // [n]
};

struct ChosenKernels {
  /// One row times the chosen outputs; other outputs of y are left as they are. Bit for bit what
  /// MatMulKernels::multiply gives.
  void (*multiply)(const ChosenArgs&);
  PredictKernels predict;
};

/// Those of the level whose other kernels these are; kernels/dispatch.cc knows them.
const ChosenKernels& chosen_kernels(const Kernels& level);

/// Writes `outputs` records, at most 16, as the tile that MatMulKernels::multiply takes.
static inline void records_to_tile(const uint8_t* records, int64_t groups, int scale_bits,
                                   int64_t outputs, uint8_t* tile) {
  const int64_t chunk = group_bytes(4, scale_bits), record = record_bytes(groups, scale_bits);
  const int64_t factor = scale_bits / 8;
  memset(tile, 0, static_cast<size_t>(tile_bytes(groups, 4, scale_bits)));
  for (int64_t o = 0; o < outputs; ++o, records += record) {
    for (int64_t g = 0; g < groups; ++g) {
      const uint8_t* const from = records + g / kChunk * chunk;
      uint8_t* const to = tile + g * chunk;
      for (int64_t v = 0; v < quant_bytes(4) / 64; ++v) {
        memcpy(to + 64 * v + 4 * o, from + 64 * v + 4 * (g % kChunk), 4);
      }
      for (int64_t f = 0; f < 2; ++f) {
        const int64_t factors = quant_bytes(4) + factor * kTile * f;
        memcpy(to + factors + factor * o, from + factors + factor * (g % kChunk),
               static_cast<size_t>(factor));
      }
    }
    if (scale_bits == 8) memcpy(tile + groups * chunk + 2 * o, records + record - 2 * kTile, 2);
  }
}

}  // namespace tamiz
