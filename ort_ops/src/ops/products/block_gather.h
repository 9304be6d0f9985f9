#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `BlockGather`: rows of a weight packed as kernels/products/packing.h says.
const OpSpec& block_gather_spec();

}  // namespace tamiz
