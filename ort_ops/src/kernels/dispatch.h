// Which levels of instructions this machine runs and which one is used.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/affine/affine.h"
#include "kernels/attention/attention_pairs.h"
#include "kernels/kernels.h"

namespace tamiz {

/// The kernels of one level of instructions: on x86-64 `amx`, `avx512`, `avx512vnni`, `avx512base`,
/// `avxvnni`, `avx2` or `portable`, on ARM `i8mm`, `dotprod` or `neon`, anywhere `scalar`. Null or
/// empty selects the environment variable TAMIZ_ISA and, where that is not set, the best this
/// machine runs. Throws Error when the name is unknown or the machine lacks it.
TAMIZ_API const Kernels& kernels(const char* isa);

/// The products with affine weights of a level.
TAMIZ_API const AffineKernels& affine_kernels(const Kernels& level);

/// Attention of a level with factors of bfloat16; null where the level or this machine lacks it.
TAMIZ_API const PairKernels* pair_kernels(const Kernels& level);

/// The levels compiled in and runnable here, best first.
TAMIZ_API std::vector<std::string> runnable_isas();

/// The features that the choice looks at, and whether this machine has them.
TAMIZ_API std::vector<std::pair<std::string, bool>> cpu_features();

}  // namespace tamiz
