// Kernels that predict from signs which outputs of a product are positive (SparseInfer, arXiv
// 2411.12692, with inputs of up to kMostPlanes bits):
//
//   level_i = number of thresholds e_t with x_i - center_i > e_t,   t = 1 .. 2^planes - 1,
//   e_t = (t - 2^(planes-1)) step;   with one plane the sign of x_i - center_i
//   distance[o] = sum_j 2^j popcount(signs[o] ^ plane_j),   plane_j: bit j of all levels
//   mask[o] = distance[o] <= limit[o]
//
// The distance falls as sum_i sign(w[o,i]) (2 level_i + 1 - 2^planes) grows: twice the distance and
// this sum are k (2^planes - 1). A tile is 16 outputs; its groups of 32 inputs follow each other,
// 64 bytes each: bit i of 32-bit word o is set where the weight of output o and input i is
// positive.
#pragma once

#include <stdint.h>

#include "kernels/products/packing.h"

namespace tamiz {

constexpr int kMostPlanes = 4;
constexpr int64_t kSignWordBytes = 64;  // of a group of a tile

struct PredictArgs {
  const uint8_t* signs;  // the first tile
  int64_t groups;
  const uint32_t* planes;  // [count, groups]
  int count;
  int64_t outputs;        // the last tile may be padded
  const int32_t* limits;  // [outputs]
  uint8_t* mask;          // [outputs]
};

struct PredictKernels {
  /// Writes the planes of a row of k inputs, [count, groups of k]; missing inputs are 0, and a NaN
  /// is above no threshold. `center` is [k] or null.
  void (*pack)(const float* x, const float* center, float step, int64_t k, int count,
               uint32_t* planes);

  /// The mask of one row; returns how many outputs it keeps.
  int64_t (*predict)(const PredictArgs&);
};

}  // namespace tamiz
