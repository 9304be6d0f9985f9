#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `EventSelect`: which inputs of a product are computed in a decode step.
const OpSpec& event_select_spec();

}  // namespace tamiz
