// Kernels of the matrix product that skips single inputs: weights [N outputs, K inputs] of 4 bits,
// packed by input channel, so that the quants of an input that is left out are never read.
//
//   y[o] = sum_g ( (sum over the active i of xq[g,i] wq[o,g,i]) xs[g] ws[o,g] + xsum[g] wmin[o,g] )
//
// With scales and minima of 8 bits, which count units of their output: y[o] = unit[o] sum_g (...).
//
// Quants, groups of 32 inputs, scales and minima are those of kernels/products/packing.h, only
// their places differ. A panel is 128 outputs, the last one 64 where N, padded to a multiple of 64,
// leaves no more; panels follow each other. A group of a panel of P outputs is 40 records of P / 2
// bytes: one for every input, then P fp16 scales and P fp16 minima in eight. Record r lies in
// stream r % 8; a panel is its 8 streams, one after the other, each of the groups' 5 records r % 8,
// r % 8 + 8, ... Records that follow each other in a group are in pages of their own that way:
// lines with gaps between them come faster from eight pages in turn than from one.
//
// With scales of 8 bits the streams hold the records of inputs only, four of a group each. After
// them lie P scales and P minima of every group, and then the P fp16 numbers of the units.
//
// With d = P / 32, byte 16 b + 4 j + c of a record (b < d, j < 4, c < 4) holds output
// 8 d j + 4 b + c in the low nibble and output 8 d j + 4 d + 4 b + c in the high one. So bytes of
// four records, interleaved in registers, are what one instruction multiplies (VPDPBUSD,
// VPMADDUBSW): four inputs of as many outputs as a vector has words of 32 bits.
//
// No STL in here.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/products/matmul.h"

namespace tamiz {

constexpr int64_t kPanel = 128;     // outputs
constexpr int64_t kHalfPanel = 64;  // outputs of the last one, perhaps

constexpr int64_t kStreams = 8;
/// Records of a group in a stream.
constexpr int64_t stream_records(int scale_bits) {
  return (kGroup + (scale_bits == 8 ? 0 : 8)) / kStreams;
}

/// Where what a panel consists of lies, in bytes from its beginning.
struct PanelLayout {
  int64_t outputs;  // kPanel or kHalfPanel
  int64_t groups;
  int scale_bits;  // 16 or 8

  constexpr int64_t bytes() const {
    return outputs * groups * (kGroup / 2 + 2 * scale_bits / 8) +
           outputs / kTile * unit_bytes(scale_bits);
  }
  constexpr int64_t record_bytes() const { return outputs / 2; }
  constexpr int64_t stream_bytes() const {
    return groups * stream_records(scale_bits) * record_bytes();
  }
  /// Record `r` of a group.
  constexpr int64_t record(int64_t group, int64_t r) const {
    return r % kStreams * stream_bytes() +
           (group * stream_records(scale_bits) + r / kStreams) * record_bytes();
  }
  /// Byte `b` of a group's scales and minima.
  constexpr int64_t factor(int64_t group, int64_t b) const {
    if (scale_bits == 8) return kStreams * stream_bytes() + group * 2 * outputs + b;
    return record(group, kGroup + b / record_bytes()) + b % record_bytes();
  }
  /// Of scales of 8 bits.
  constexpr int64_t units() const { return factor(groups, 0); }
};

/// Where output `o` of a panel of `outputs` lies in a record: byte and, if 4, the high nibble.
static inline int64_t channel_byte(int64_t outputs, int64_t o, int* shift) {
  const int64_t d = outputs / 32;
  const int64_t in_pair = o % (8 * d);
  *shift = in_pair < 4 * d ? 0 : 4;
  const int64_t lane = in_pair % (4 * d);
  return 16 * (lane / 4) + 4 * (o / (8 * d)) + lane % 4;
}

/// Copies the scales, minima and units of a panel to the tiles that it becomes.
static inline void copy_factors(const uint8_t* panel, const PanelLayout& layout, uint8_t* tiles) {
  const int64_t factor = layout.scale_bits / 8;
  for (int64_t t = 0; t < layout.outputs / kTile; ++t) {
    uint8_t* to = tiles + t * tile_bytes(layout.groups, 4, layout.scale_bits);
    for (int64_t g = 0; g < layout.groups; ++g, to += group_bytes(4, layout.scale_bits)) {
      for (int64_t f = 0; f < 2; ++f) {
        memcpy(to + quant_bytes(4) + factor * kTile * f,
               panel + layout.factor(g, factor * (f * layout.outputs + t * kTile)),
               static_cast<size_t>(factor * kTile));
      }
    }
    if (layout.scale_bits == 8) memcpy(to, panel + layout.units() + 2 * kTile * t, 2 * kTile);
  }
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
/// lie kMostAhead times the first record.
struct ActiveInputs {
  static constexpr int64_t kTogether = 8;
  static constexpr int64_t kMostAhead = 128;

  ActiveGroup* groups;  // [those of the row]
  uint32_t* records;    // [32 times the groups + kMostAhead]: bytes before it in a whole panel
  int8_t* high;         // [32 times the groups]: quant = 256 high + low
  int8_t* low;

  /// Numbers that a group of this many inputs takes.
  static constexpr int64_t places(int64_t count) {
    return (count + kTogether - 1) / kTogether * kTogether;
  }
  /// Goes on to the next group after one of this many inputs.
  void pass(int64_t count) {
    records += places(count);
    high += places(count);
    low += places(count);
  }
};

/// What ActiveInputs hold.
struct Listed {
  int64_t groups;
  int64_t ahead;  // inputs whose records are prefetched
};

/// With `active` of the inputs of so many groups. Lines that lie far apart come later; where more
/// of them are read, the processor prefetches as well, and half of the distance is 5 % faster.
constexpr Listed listed(int64_t groups, int64_t active, int64_t inputs) {
  return {groups, 5 * active < inputs ? ActiveInputs::kMostAhead : ActiveInputs::kMostAhead / 2};
}

struct ChannelArgs {
  const uint8_t* panel;
  PanelLayout layout;
  ActiveInputs x;
  Listed listed;  // in x
  float* y;       // [outputs] of the panel, is added to
};

struct ChannelKernels {
  /// Lists the active inputs of one quantised row. A group of which the mask keeps nothing
  /// (`masked` and x.kept = 0) is not listed. `scale_bits`: of the weight.
  Listed (*list)(const QuantRows& x, int64_t row, bool masked, int scale_bits,
                 const ActiveInputs& to);

  /// One panel times one row. Bit for bit what MatMulKernels::multiply gives.
  void (*multiply)(const ChannelArgs&);

  /// Writes a panel as the tiles that MatMulKernels::multiply takes: outputs / 16 tiles.
  void (*to_tiles)(const uint8_t* panel, const PanelLayout& layout, uint8_t* tiles);
};

}  // namespace tamiz
