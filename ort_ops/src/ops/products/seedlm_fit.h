#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/kernels.h"

namespace tamiz {

/// Finds seeds, coefficients and scales of the format of kernels/deltas/seedlm.h that minimise
///
///   sum_i m_i (w[o, i] - made[o, i])^2        for every output o
///
/// nearly: a block's seed is one of the 16 that suit it best with coefficients of any size, one for
/// each class of the seed's number mod 16; then scale, seed and rounded coefficients are chosen
/// together. Always the same bytes, on one thread.
///
/// weight [n, k], root_m [k], the roots of m; bits 3 or 4. Returns tiles of groups, packed. Throws
/// Error where a scale is too large for fp16.
TAMIZ_API std::vector<uint8_t> fit_seedlm(const float* weight, const float* root_m, int64_t n,
                                          int64_t k, int bits, const Kernels& kernels);

}  // namespace tamiz
