#pragma once

#include "engine/op_spec.h"

namespace tamiz {

/// The op `Attention`; its stage runs the kernels of kernels/attention/attention.h.
const OpSpec& attention_spec();
std::unique_ptr<Stage> make_attention(const Attributes& attributes, const Kernels& kernels);

}  // namespace tamiz
