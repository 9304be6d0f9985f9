#pragma once

#include "engine/op_spec.h"

namespace tamiz {

const OpSpec& head_shortlist_spec();

}  // namespace tamiz
