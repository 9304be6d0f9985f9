// Attribute values checked against an op's declaration, wherever they come from.
#pragma once

#include <string>

#include "engine/op_spec.h"

namespace tamiz {

/// The declaration of attribute `name`; throws Error naming the attributes that exist.
TAMIZ_API const AttributeSpec& find_attribute(const OpSpec& spec, const std::string& name);

/// Fills in the defaults of what is not set; throws Error when a required attribute is missing.
TAMIZ_API void complete(const OpSpec& spec, Attributes& attributes);

}  // namespace tamiz
