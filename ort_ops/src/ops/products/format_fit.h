#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"

namespace tamiz {

/// Where the scales of a format lie: fp16 in each group, or whole numbers that count an fp16 factor
/// of their super-block or output.
enum class ScaleHome { group, super_block, output };

/// A weight format as a lattice: w = scale * level + minimum.
struct FitFormat {
  std::vector<float> levels;  // rising
  bool linear;                // they are consecutive integers
  bool minimum;
  ScaleHome home;
  int64_t group, block;  // inputs that share a scale, and an fp16 factor
  int lowest, highest;   // whole numbers of a scale; a minimum's go from 0 to `highest`
};

/// A fitted weight of n outputs. Factors are fp16; `scales` and `minima` [n, groups] are fp16 bits
/// or whole numbers, `d` and `dmin` [n, blocks] fp16 bits; with a factor of the output, [n, 1].
struct FittedFormat {
  std::vector<uint8_t> quants;  // [n, k], the number of each level
  std::vector<uint16_t> scales, minima, d, dmin;
};

/// Finds quants, scales and minima that minimise sum_i m_i (w[o, i] - made[o, i])^2 nearly.
///
/// weight [n, k], cost [k] >= 0. Without `search`, scales and minima are those of the extremes, and
/// quants are rounded to nearest. Always the same bytes, on one thread. Throws Error where a scale
/// is too large for fp16.
TAMIZ_API FittedFormat fit_format(const FitFormat& format, const float* weight, const float* cost,
                                  int64_t n, int64_t k, bool search);

/// Rounds weights [n, width] one input after the other, with feedback (LDLQ, GPTQ):
///
///   q_j = nearest level to w_j + carried_j / r[j, j],  e_j = w_j - made_j,
///   carried_i += e_j r[j, i] for i > j
///
/// so that |e r + carried|^2 is small, where r r^T is the second moment of the inputs. r
/// [width, width] is upper triangular; scale and minimum [n, width / group] are given. Replaces
/// `carried` [n, width], what earlier inputs left, with the errors e; writes quants [n, width].
TAMIZ_API void round_with_feedback(const FitFormat& format, const float* weight, const float* r,
                                   const float* scale, const float* minimum, int64_t n,
                                   int64_t width, float* carried, uint8_t* quants);

}  // namespace tamiz
