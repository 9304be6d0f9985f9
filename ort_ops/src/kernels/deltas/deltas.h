// A weight [N outputs, K inputs] of which some entries are stored and the rest comes from a hash:
//
//   w[o, i] = value[o, i]        where a delta is stored (base + delta, so no noise of the hash)
//             base * hash(o, i)  elsewhere in a group that exists
//             0                  in a group that does not exist
//
// hash(o, i) is one of the odd numbers -15 .. 15: 2 * nibble - 15, where the nibble is part of
// z(o / 2 * 2^32 + i / 8), output number c of the generator splitmix64 (Steele et al. 2014,
// "Fast splittable pseudorandom number generators"): z(c) = mix(seed + (c + 1) * gamma).
//
// Tiles and groups are those of kernels/products/packing.h. A tile is a sequence of records, one
// for every group that exists, in order of the groups; `starts` says where it begins. A record:
//
//   u16 group, u16 form * 2^14 + bytes that follow
//   form 0, all are stored: a group as kernels/products/packing.h lays it out; of 16 bits the
//   values form 1, a bit for each: 16 fp16 scales; for 4 bits 16 fp16 minima; 512 bits; the values
//   form 2, few are stored: scales and minima likewise; a u16 for each, its place; the values
//
// The place of input i of output o among the 512 is 64 * (i / 4) + 4 * o + i % 4. Values lie in
// order of their places, 8 bits a byte each (int8), 4 bits two a byte, low nibble first, where
// every 64 places of form 1 begin a new byte. value = scale * quant, for 4 bits + minimum. Of 16
// bits the values themselves are stored, fp16; there are no scales and no hash.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/products/matmul.h"

namespace tamiz {

constexpr int64_t kPlaces = kTile * kGroup;
constexpr int64_t kRecordHeader = 4;
constexpr int64_t kDeltaPadding = 64;  // bytes after the last record, so that loads may overrun

constexpr int64_t kDamaged = -1;

enum class RecordForm { full = 0, bits = 1, places = 2 };

struct DeltaRecord {
  int64_t group;
  RecordForm form;
  int64_t bytes;  // of the payload
  const uint8_t* payload;
};

static inline uint16_t read_u16(const uint8_t* p) {
  uint16_t value;
  memcpy(&value, p, sizeof(value));
  return value;
}

/// The record at `at`; at least kRecordHeader bytes must be there.
static inline DeltaRecord delta_record(const uint8_t* at) {
  const uint16_t tail = read_u16(at + 2);
  return {read_u16(at), static_cast<RecordForm>(tail >> 14), tail & 0x3fff, at + kRecordHeader};
}

/// Bytes of the scales and minima of a record that is not full.
constexpr int64_t factor_bytes(int bits) { return bits == 16 ? 0 : (bits == 4 ? 4 : 2) * kTile; }

/// Stored values of a record of places. `bytes` of them take 2 and `bits` / 8 each.
constexpr int64_t place_count(int bits, int64_t payload_bytes) {
  const int64_t rest = payload_bytes - factor_bytes(bits);
  return bits == 4 ? rest * 2 / 5 : rest / (2 + bits / 8);
}

struct DeltaArgs {
  const uint8_t* records;  // of one tile; kDeltaPadding readable bytes follow
  int64_t bytes;
  int64_t tile;  // which one it is
  int bits;      // of a value: 4, 8 or 16
  float base;    // 0: nothing is hashed
  uint64_t seed;
  QuantRows x;
  int64_t first_row;  // a multiple of kRowsTogether
  int64_t rows;       // 1 .. kRowBlock
  bool skip;          // rows = 1: do not read groups of which no input is kept
  int64_t outputs;    // of this tile that exist
  float* y;           // of the first row; the next is y_stride further
  int64_t y_stride;
};

struct DeltaKernels {
  /// y[r, o] += sum_g x_scale[r,g] * factor[o,g] * (sum_i x_quant[r,g,i] * quant[o,g,i]), over the
  /// stored values (factor = scale), where they are stored (1, minimum), and the rest (hash, base);
  /// of 16 bits, y[r, o] += sum_i (x_scale[r,g] * x_quant[r,g,i]) * value[o, i], i in order.
  ///
  /// The sum over i is exact, the one over g runs in order, as in BlockMatMul. Returns the bytes of
  /// records that it read, or kDamaged, with y undefined, where they make no sense; reads nothing
  /// outside of them then either.
  int64_t (*multiply)(const DeltaArgs&);

  /// v = H v in place, H the Walsh-Hadamard matrix of `size`, a power of two: H[i, j] = -1 to the
  /// number of ones in i & j. Not scaled. The same bits on every instruction set.
  void (*hadamard)(float* v, int64_t size);
};

}  // namespace tamiz
