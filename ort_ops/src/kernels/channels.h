// Kernels of the matrix product that skips single inputs: weights [N outputs, K inputs] of 4 bits,
// packed by input channel, so that the quants of an input that is left out are never read.
//
//   y[o] = sum_g ( (sum over the active i of xq[g,i] wq[o,g,i]) xs[g] ws[o,g] + xsum[g] wmin[o,g] )
//
// Quants, groups of 32 inputs, scales and minima are those of kernels/packing.h, only their places
// differ. A panel is 128 outputs, the last one 64 where N, padded to a multiple of 64, leaves no
// more; panels follow each other, and so do the groups of a panel. A group of a panel of P outputs,
// 20 P bytes:
//
//   32 records, one for every input, of P / 2 bytes; then P fp16 scales; then P fp16 minima
//
// With d = P / 32, byte 16 b + 4 j + c of a record (b < d, j < 4, c < 4) holds output
// 8 d j + 4 b + c in the low nibble and output 8 d j + 4 d + 4 b + c in the high one. So bytes of
// four records, interleaved in registers, are what one instruction multiplies (VPDPBUSD,
// VPMADDUBSW): four inputs of as many outputs as a vector has words of 32 bits.
//
// No STL in here.
#pragma once

#include <stdint.h>

#include "kernels/matmul.h"

namespace tamiz {

constexpr int64_t kPanel = 128;     // outputs
constexpr int64_t kHalfPanel = 64;  // outputs of the last one, perhaps

/// Bytes of 64 outputs and one group.
constexpr int64_t kHalfPanelGroupBytes = kHalfPanel * (kGroup / 2 + 4);

constexpr int64_t panel_group_bytes(int64_t outputs) { return outputs * (kGroup / 2 + 4); }

/// Where output `o` of a panel of `outputs` lies in a record: byte and, if 4, the high nibble.
static inline int64_t channel_byte(int64_t outputs, int64_t o, int* shift) {
  const int64_t d = outputs / 32;
  const int64_t in_pair = o % (8 * d);
  *shift = in_pair < 4 * d ? 0 : 4;
  const int64_t lane = in_pair % (4 * d);
  return 16 * (lane / 4) + 4 * (o / (8 * d)) + lane % 4;
}

/// The inputs of a group that count: those that are kept and whose quant is not 0.
struct alignas(64) ActiveGroup {
  uint8_t input[kGroup];  // in order; from `count` on the first of them again
  int8_t high[kGroup];    // quant = 256 high + low; 0 from `count` on
  int8_t low[kGroup];
  int32_t group;
  int32_t count;
  float scale;
  float sum;  // scale * sum of the quants
};

struct ChannelArgs {
  const uint8_t* panel;
  int64_t outputs;  // of the panel: kPanel or kHalfPanel
  int64_t groups;   // of the weight
  const ActiveGroup* active;
  int64_t active_groups;
  float* y;  // [outputs] of the panel, is added to
};

struct ChannelKernels {
  /// Lists the active inputs of one quantised row, group by group; returns the number of groups. A
  /// group of which the mask keeps nothing (`masked` and x.kept = 0) is not listed.
  int64_t (*list)(const QuantRows& x, int64_t row, bool masked, ActiveGroup* to);

  /// One panel times one row. Bit for bit what MatMulKernels::multiply gives.
  void (*multiply)(const ChannelArgs&);

  /// Writes a panel as the tiles that MatMulKernels::multiply takes: outputs / 16 tiles.
  void (*to_tiles)(const uint8_t* panel, int64_t outputs, int64_t groups, uint8_t* tiles);
};

}  // namespace tamiz
