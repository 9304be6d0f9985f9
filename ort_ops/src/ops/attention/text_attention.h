// The op TextAttention: attention of encoders.
#pragma once

#include "engine/op_spec.h"

namespace tamiz {

const OpSpec& text_attention_spec();

}  // namespace tamiz
