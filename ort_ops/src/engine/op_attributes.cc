#include "engine/op_attributes.h"

namespace tamiz {

const AttributeSpec& find_attribute(const OpSpec& spec, const std::string& name) {
  std::string known;
  for (const AttributeSpec& attribute : spec.attributes) {
    if (name == attribute.name) return attribute;
    known += (known.empty() ? "" : ", ") + std::string(attribute.name);
  }
  throw Error("unknown attribute '" + name + "', " + spec.name +
              (known.empty() ? " has none" : " has: " + known));
}

void complete(const OpSpec& spec, Attributes& attributes) {
  using Kind = AttributeSpec::Kind;
  for (const AttributeSpec& attribute : spec.attributes) {
    const std::string name = attribute.name;
    const bool present = attributes.ints.count(name) || attributes.floats.count(name) ||
                         attributes.strings.count(name) || attributes.int_arrays.count(name);
    if (present) continue;
    if (attribute.required) throw Error("attribute '" + name + "' is missing");
    switch (attribute.kind) {
      case Kind::integer:
        attributes.ints[name] = static_cast<int64_t>(attribute.default_value);
        break;
      case Kind::real:
        attributes.floats[name] = static_cast<float>(attribute.default_value);
        break;
      case Kind::text:
        attributes.strings[name];
        break;
      case Kind::integers:
        attributes.int_arrays[name];
        break;
    }
  }
}

}  // namespace tamiz
