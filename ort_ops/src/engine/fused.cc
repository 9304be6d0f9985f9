// One stage a line:
//   <OpType> <attribute>=<value> ... : <input> ... -> <output> ...
// Values are numbers: node inputs are 0..I-1, the stages' outputs follow in order and are written
// out; `-` is an omitted input or an unused output (which takes no number). A line `<name>:` begins
// a part, a layer for instance, that messages and metrics name. Of a node input that is a stack
// every value has its number.
#include "engine/fused.h"

#include <cerrno>
#include <cstdlib>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "engine/op_attributes.h"

namespace tamiz {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

int64_t parse_integer(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end || errno) throw Error("'" + text + "' is not an integer");
  return value;
}

float parse_real(const std::string& text) {
  char* end = nullptr;
  const float value = std::strtof(text.c_str(), &end);
  if (text.empty() || *end) throw Error("'" + text + "' is not a number");
  return value;
}

/// Reads the lines of one program; knows which value comes next.
class Parser {
 public:
  explicit Parser(size_t inputs) : next_(static_cast<int>(inputs)) {}

  /// `words`: a line's words, at least one.
  Step parse(const std::vector<std::string>& words) {
    Step step{&find_op(words[0]), {}, {}, {}, "", ""};
    size_t w = 1;
    for (; w < words.size() && words[w] != ":"; ++w) parse_attribute(words[w], step);
    if (w++ == words.size()) throw Error("':' is missing before the inputs");
    for (; w < words.size() && words[w] != "->"; ++w) step.inputs.push_back(parse_input(words[w]));
    if (w++ == words.size()) throw Error("'->' is missing before the outputs");
    for (; w < words.size(); ++w) step.outputs.push_back(parse_output(words[w]));
    complete(*step.spec, step.attributes);
    return step;
  }

  /// The number after the last value.
  int next() const { return next_; }

 private:
  static const OpSpec& find_op(const std::string& name) {
    for (const OpSpec& spec : op_specs()) {
      if (name == spec.name && !spec.variadic) return spec;
    }
    throw Error("'" + name + "' is not an op that can be fused");
  }

  static void parse_attribute(const std::string& word, Step& step) {
    using Kind = AttributeSpec::Kind;
    const size_t equals = word.find('=');
    if (equals == std::string::npos) throw Error("'" + word + "' is not <attribute>=<value>");
    const std::string name = word.substr(0, equals);
    const std::string value = word.substr(equals + 1);
    switch (find_attribute(*step.spec, name).kind) {
      case Kind::integer:
        step.attributes.ints[name] = parse_integer(value);
        break;
      case Kind::real:
        step.attributes.floats[name] = parse_real(value);
        break;
      case Kind::text:
        step.attributes.strings[name] = value;
        break;
      case Kind::integers:
        for (const std::string& part : split(value, ',')) {
          step.attributes.int_arrays[name].push_back(parse_integer(part));
        }
        break;
    }
  }

  int parse_input(const std::string& word) const {
    if (word == "-") return kOmitted;
    const int64_t id = parse_integer(word);
    if (id < 0 || id >= next_) {
      throw Error("input " + word + " is not a value yet, expected 0 to " +
                  std::to_string(next_ - 1));
    }
    return static_cast<int>(id);
  }

  int parse_output(const std::string& word) {
    if (word == "-") return kOmitted;
    if (parse_integer(word) != next_) {
      throw Error("output " + word + " is out of order, expected " + std::to_string(next_));
    }
    return next_++;
  }

  int next_;
};

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream stream(line);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::vector<Step> parse_program(const std::string& text, Parser& parser) {
  std::vector<Step> steps;
  std::string part;
  const std::vector<std::string> lines = split(text, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::vector<std::string> words = words_of(lines[i]);
    if (words.empty()) continue;
    if (lines[i].back() == ':') {
      part = lines[i].substr(0, lines[i].size() - 1);
      continue;
    }
    const std::string line = "line " + std::to_string(i + 1);
    try {
      steps.push_back(parser.parse(words));
    } catch (const Error& error) {
      throw Error("program " + line + ": " + error.what());
    }
    steps.back().name =
        (part.empty() ? "" : part + ", ") + line + " (" + steps.back().spec->name + "): ";
    steps.back().part = part;
  }
  if (steps.empty()) throw Error("attribute 'program' has no stage");
  return steps;
}

Type type_of(const std::vector<Step>& steps, int64_t id) {
  for (const Step& step : steps) {
    for (size_t i = 0; i < step.outputs.size() && i < step.spec->outputs.size(); ++i) {
      if (step.outputs[i] == id) return step.spec->outputs[i].type;
    }
  }
  return Type::none;
}

std::vector<size_t> read_stacks(const Attributes& attributes) {
  constexpr int64_t kMost = 1 << 20;
  std::vector<size_t> stacks;
  for (const int64_t count : attributes.int_arrays.at("stacks")) {
    if (count < 1 || count > kMost) {
      throw Error("attribute 'stacks' has " + std::to_string(count) + ", expected 1 to " +
                  std::to_string(kMost));
    }
    stacks.push_back(static_cast<size_t>(count));
  }
  return stacks;
}

/// The number of values in `ports` ports, of which the last ones are stacks.
size_t value_count(size_t ports, const std::vector<size_t>& stacks, const char* what) {
  if (ports < stacks.size()) {
    throw Error("attribute 'stacks' lists " + std::to_string(stacks.size()) +
                " stacks, the node has " + std::to_string(ports) + " " + what);
  }
  return std::accumulate(stacks.begin(), stacks.end(), ports - stacks.size());
}

}  // namespace

size_t fused_outputs(const Attributes& attributes) {
  const std::vector<size_t> stacks = read_stacks(attributes);
  const size_t values = attributes.int_arrays.at("outputs").size();
  const size_t stacked = value_count(stacks.size(), stacks, "outputs");
  return values < stacked ? stacks.size() : values - stacked + stacks.size();
}

Program fused_program(const Attributes& attributes, size_t inputs, const std::vector<bool>& wanted,
                      const Kernels& kernels, NodeMetrics& metrics) {
  const std::vector<size_t> stacks = read_stacks(attributes);
  const size_t values = value_count(inputs, stacks, "inputs");
  Parser parser(values);
  std::vector<Step> steps = parse_program(attributes.strings.at("program"), parser);
  const std::vector<int64_t>& ids = attributes.int_arrays.at("outputs");
  if (ids.size() != value_count(wanted.size(), stacks, "outputs")) {
    throw Error("attribute 'outputs' lists " + std::to_string(ids.size()) +
                " values, the node has " + std::to_string(wanted.size()) + " outputs" +
                (stacks.empty() ? "" : ", the last ones stacks"));
  }
  std::vector<bool> wanted_values(wanted.begin(), wanted.end() - static_cast<int>(stacks.size()));
  for (size_t s = 0; s < stacks.size(); ++s) {
    wanted_values.resize(wanted_values.size() + stacks[s],
                         wanted[wanted.size() - stacks.size() + s]);
  }
  std::set<int64_t> seen;
  std::vector<int> outputs;
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool computed = ids[i] >= static_cast<int64_t>(values) && ids[i] < parser.next();
    if (!computed || !seen.insert(ids[i]).second) {
      throw Error("attribute 'outputs' has " + std::to_string(ids[i]) +
                  (computed ? " twice" : ", which no stage computes"));
    }
    if (type_of(steps, ids[i]) != Type::float32) {
      throw Error("attribute 'outputs' has " + std::to_string(ids[i]) +
                  ", which is not float32 and has to stay inside the node");
    }
    outputs.push_back(wanted_values[i] ? static_cast<int>(ids[i]) : kOmitted);
  }
  return Program(std::move(steps), values, std::move(outputs), stacks, kernels, metrics);
}

const OpSpec& fused_spec() {
  using Kind = AttributeSpec::Kind;
  static const OpSpec spec = {
      "Fused",
      "Runs a sequence of the other ops, its stages, as one node with one team of threads.",
      {},
      {},
      /*variadic=*/true,
      {{"program", Kind::text, true, 0,
        "One stage a line: <OpType> <attribute>=<value> ... : <input> ... -> <output> ...; values "
        "are numbers, node inputs first, then the stages' outputs in order; - is omitted. A line "
        "<name>: begins a part, which messages and metrics name."},
       {"outputs", Kind::integers, true, 0, "The values that are the node's outputs."},
       {"stacks", Kind::integers, false, 0,
        "The last inputs and outputs each stack this number of values of one shape along a "
        "first dimension: the state of all layers, for one. Each of these values has a number of "
        "its own."}},
      {},
      /*make=*/nullptr};
  return spec;
}

}  // namespace tamiz
