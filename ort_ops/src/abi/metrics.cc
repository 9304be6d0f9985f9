// TamizMetrics: the metrics of sessions for hosts that are not Python.
#include "base/metrics.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

namespace tamiz {
namespace {

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char character : text) {
    const auto code = static_cast<unsigned char>(character);
    if (code < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", code);
      result += escaped;
      continue;
    }
    if (character == '"' || character == '\\') result += '\\';
    result += character;
  }
  return result + '"';
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return std::strpbrk(text, "ni") ? "null" : text;  // not finite
}

std::string json(double value) { return number(value); }

template <class Value>
std::string json(const std::map<std::string, Value>& values) {
  std::string text;
  for (const auto& [name, value] : values) {
    text += (text.empty() ? "" : ", ") + quoted(name) + ": " + json(value);
  }
  return "{" + text + "}";
}

}  // namespace
}  // namespace tamiz

/// Writes what sessions counted as JSON, {node or part: {op: {metric: sum}}}, with a final 0.
///
/// `session`: the session options' entry "tamiz.session", which registering the library sets.
/// `text`: room for `size` bytes; receives nothing where that is too little. Returns the bytes that
/// are needed; 0 where there is no memory for them.
extern "C" TAMIZ_API size_t TamizMetrics(const char* session, char* text, size_t size) noexcept {
  try {
    const std::string found = tamiz::json(tamiz::read_metrics(session ? session : ""));
    if (text && size > found.size()) std::memcpy(text, found.c_str(), found.size() + 1);
    return found.size() + 1;
  } catch (const std::exception&) {
    return 0;
  }
}
