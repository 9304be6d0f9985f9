#pragma once

#include "ops/stage.h"

namespace tamiz {

/// The op `BlockGather`: rows of a weight packed as kernels/packing.h says.
const OpSpec& block_gather_spec();

}  // namespace tamiz
