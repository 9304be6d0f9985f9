#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `LastPositions`; its stage copies rows.
const OpSpec& last_positions_spec();

}  // namespace tamiz
