// Kernels of the matrix product that skips single inputs: weights [N outputs, K inputs] of 4 bits,
// packed by input channel, so that the quants of an input that is left out are never read.
//
//   y[o] = sum_g ( (sum over the active i of xq[g,i] wq[o,g,i]) xs[g] ws[o,g] + xsum[g] wmin[o,g] )
//
// Quants, groups of 32 inputs, scales and minima are those of kernels/packing.h, only their places
// differ. A panel is 128 outputs, the last one 64 where N, padded to a multiple of 64, leaves no
// more; panels follow each other. A group of a panel of P outputs is 40 records of P / 2 bytes: one
// for every input, then P fp16 scales and P fp16 minima in eight. Record r lies in stream r % 8; a
// panel is its 8 streams, one after the other, each of the groups' 5 records r % 8, r % 8 + 8, ...
// Records that follow each other in a group are in pages of their own that way: lines with gaps
// between them come faster from eight pages in turn than from one.
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

/// Bytes of so many outputs and one group.
constexpr int64_t panel_group_bytes(int64_t outputs) { return outputs * (kGroup / 2 + 4); }

constexpr int64_t kStreams = 8;
constexpr int64_t kStreamRecords = (kGroup + 8) / kStreams;  // of a group

/// The number of record `r` of a group in a panel of so many groups.
constexpr int64_t channel_record(int64_t groups, int64_t group, int64_t r) {
  return (r % kStreams * groups + group) * kStreamRecords + r / kStreams;
}

/// Where byte `b` of a group's scales and minima lies in a panel of `outputs`.
constexpr int64_t channel_factor(int64_t outputs, int64_t groups, int64_t group, int64_t b) {
  const int64_t bytes = outputs / 2;
  return channel_record(groups, group, kGroup + b / bytes) * bytes + b % bytes;
}

/// Where output `o` of a panel of `outputs` lies in a record: byte and, if 4, the high nibble.
static inline int64_t channel_byte(int64_t outputs, int64_t o, int* shift) {
  const int64_t d = outputs / 32;
  const int64_t in_pair = o % (8 * d);
  *shift = in_pair < 4 * d ? 0 : 4;
  const int64_t lane = in_pair % (4 * d);
  return 16 * (lane / 4) + 4 * (o / (8 * d)) + lane % 4;
}

/// Bytes of a record of a whole panel.
constexpr int64_t kWholeRecord = kPanel / 2;

/// A group of which a row has inputs that count: those that are kept and whose quant is not 0.
struct ActiveGroup {
  int32_t group;
  int32_t count;
  float scale;
  float sum;  // scale * sum of the quants
};

/// The active inputs of one row, group after group. The inputs of a group begin at a multiple of
/// kTogether; up to the next one its first input is repeated with a quant of 0. Behind the last one
/// lie kAhead times the first record.
struct ActiveInputs {
  static constexpr int64_t kTogether = 8;
  static constexpr int64_t kAhead = 64;  // inputs of which the records are asked for

  ActiveGroup* groups;  // [those of the row]
  uint32_t* records;    // [32 times the groups + kAhead]: bytes before it in a whole panel
  int8_t* high;         // [32 times the groups]: quant = 256 high + low
  int8_t* low;

  /// Numbers that a group of so many inputs takes.
  static constexpr int64_t places(int64_t count) {
    return (count + kTogether - 1) / kTogether * kTogether;
  }
  /// Goes on to the next group after one of so many inputs.
  void pass(int64_t count) {
    records += places(count);
    high += places(count);
    low += places(count);
  }
};

struct ChannelArgs {
  const uint8_t* panel;
  int64_t outputs;  // of the panel: kPanel or kHalfPanel
  int64_t groups;   // of the panel
  ActiveInputs x;
  int64_t listed;  // groups in x
  float* y;        // [outputs] of the panel, is added to
};

struct ChannelKernels {
  /// Lists the active inputs of one quantised row; returns the number of groups. A group of which
  /// the mask keeps nothing (`masked` and x.kept = 0) is not listed.
  int64_t (*list)(const QuantRows& x, int64_t row, bool masked, const ActiveInputs& to);

  /// One panel times one row. Bit for bit what MatMulKernels::multiply gives.
  void (*multiply)(const ChannelArgs&);

  /// Writes a panel as the tiles that MatMulKernels::multiply takes: outputs / 16 tiles.
  void (*to_tiles)(const uint8_t* panel, int64_t outputs, int64_t groups, uint8_t* tiles);
};

}  // namespace tamiz
