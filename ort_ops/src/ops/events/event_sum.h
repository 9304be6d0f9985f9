#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `EventSum`: adds a product of deltas to what was expected of it.
const OpSpec& event_sum_spec();

}  // namespace tamiz
