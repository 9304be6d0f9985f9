// The declaration of an op: ports, attributes, metrics, and how to make its stage.
#pragma once

#include <memory>
#include <vector>

#include "base/attributes.h"
#include "base/error.h"
#include "base/metrics.h"
#include "base/tensor.h"
#include "engine/stage.h"

namespace tamiz {

struct Kernels;  // kernels/kernels.h: one table of function pointers an instruction set

struct PortSpec {
  const char* name;
  Type type;
  bool optional;
  const char* doc;
};

/// Makes a type of an op's ports from one list: their numbers, and their declarations.
///
///   #define SWIGLU_INPUTS(PORT) PORT(gate, float32, required, "[..., n]") PORT(up, ..)
///   TAMIZ_PORTS(SwigluInput, SWIGLU_INPUTS);
///
/// `SwigluInput::up` is 1, and `SwigluInput::specs()` declares both.
#define TAMIZ_PORTS(Name, PORTS)                                         \
  struct Name {                                                          \
    enum Number : size_t { PORTS(TAMIZ_PORT_NUMBER) };                   \
    static std::vector<PortSpec> specs() {                               \
      [[maybe_unused]] constexpr bool required = false, optional = true; \
      return {PORTS(TAMIZ_PORT_SPEC)};                                   \
    }                                                                    \
  }
#define TAMIZ_PORT_NUMBER(name, type, presence, doc) name,
#define TAMIZ_PORT_SPEC(name, type, presence, doc) {#name, Type::type, presence, doc},

/// Makes a type of an op's metrics from one list: their numbers, and their declarations.
///
///   #define GATHER_METRICS(METRIC) METRIC(bytes_read, "gather.bytes_read", "bytes", "Bytes read.")
///   TAMIZ_METRICS(GatherMetric, GATHER_METRICS);
///
/// `metrics->add(GatherMetric::bytes_read, 64)` adds to the metric that `GatherMetric::specs()`
/// declares.
#define TAMIZ_METRICS(Name, METRICS)                                                \
  struct Name {                                                                     \
    enum Number : size_t { METRICS(TAMIZ_METRIC_NUMBER) };                          \
    static std::vector<MetricSpec> specs() { return {METRICS(TAMIZ_METRIC_SPEC)}; } \
  }
#define TAMIZ_METRIC_NUMBER(number, name, unit, doc) number,
#define TAMIZ_METRIC_SPEC(number, name, unit, doc) {name, unit, doc},

/// The one declaration of an op: registration, validation, `tamiz_ops.schemas()` and the docs are
/// made from it.
struct OpSpec {
  const char* name;
  const char* doc;
  std::vector<PortSpec> inputs;
  std::vector<PortSpec> outputs;
  bool variadic;  // inputs and outputs of any number and type (Fused)
  std::vector<AttributeSpec> attributes;
  std::vector<MetricSpec> metrics;
  std::unique_ptr<Stage> (*make)(const Attributes&, const Kernels&);  // null: Fused, a program
};

/// Every op of the domain, in the order of registration.
TAMIZ_API const std::vector<OpSpec>& op_specs();

}  // namespace tamiz
