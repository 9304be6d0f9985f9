// Attributes of a node: how an op declares them, and their values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tamiz {

struct AttributeSpec {
  enum class Kind { integer, real, text, integers };
  const char* name;
  Kind kind;
  bool required;
  double default_value;  // of integer and real
  const char* doc;
};

/// Attribute values of one node, already checked against the op's declaration.
struct Attributes {
  std::map<std::string, int64_t> ints;
  std::map<std::string, float> floats;
  std::map<std::string, std::string> strings;
  std::map<std::string, std::vector<int64_t>> int_arrays;
};

}  // namespace tamiz
