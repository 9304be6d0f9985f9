// tamiz_ops._native: the ops on NumPy arrays, their declarations, metrics and CPU features.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "base/metrics.h"
#include "engine/fused.h"
#include "engine/op_attributes.h"
#include "engine/program.h"
#include "kernels/dispatch.h"
#include "kernels/products/formats.h"
#include "python/fits.h"
#include "python/numpy_host.h"

namespace py = pybind11;

namespace tamiz::python {
namespace {

using Kind = AttributeSpec::Kind;

const OpSpec& find_op(const std::string& name) {
  std::string known;
  for (const OpSpec& spec : op_specs()) {
    if (name == spec.name) return spec;
    known += (known.empty() ? "" : ", ") + std::string(spec.name);
  }
  throw Error("'" + name + "' is not an op of tamiz, expected one of: " + known);
}

Attributes read_attributes(const OpSpec& spec, const py::dict& values) {
  Attributes attributes;
  for (const auto& [key, value] : values) {
    const std::string name = py::cast<std::string>(key);
    const AttributeSpec& attribute = find_attribute(spec, name);
    try {
      switch (attribute.kind) {
        case Kind::integer:
          attributes.ints[name] = py::cast<int64_t>(value);
          break;
        case Kind::real:
          attributes.floats[name] = py::cast<float>(value);
          break;
        case Kind::text:
          attributes.strings[name] = py::cast<std::string>(value);
          break;
        case Kind::integers:
          attributes.int_arrays[name] = py::cast<std::vector<int64_t>>(value);
          break;
      }
    } catch (const py::cast_error&) {
      throw Error("attribute '" + name + "' is of another type");
    }
  }
  complete(spec, attributes);
  return attributes;
}

std::vector<py::object> run(const std::string& op, std::vector<py::object> inputs,
                            std::optional<std::vector<py::object>> out,
                            const std::optional<std::string>& isa, size_t threads,
                            const py::dict& attribute_values) {
  if (threads == 0) throw Error("threads is 0, expected 1 or more");
  const OpSpec& spec = find_op(op);
  const Attributes attributes = read_attributes(spec, attribute_values);
  const size_t output_count = spec.variadic ? fused_outputs(attributes) : spec.outputs.size();
  if (!out) out.emplace(output_count, py::bool_(true));
  std::vector<bool> wanted;
  for (const py::object& output : *out) wanted.push_back(!output.is_none());
  NodeMetrics metrics("", op);
  const Program program = make_program(spec, attributes, inputs.size(), wanted,
                                       kernels(isa ? isa->c_str() : nullptr), metrics);
  NumpyHost host(std::move(inputs), std::move(*out), threads);
  program.run(host);
  return host.outputs();
}

py::list ports(const std::vector<PortSpec>& specs) {
  py::list all;
  for (const PortSpec& port : specs) {
    all.append(py::dict(py::arg("name") = port.name, py::arg("type") = type_name(port.type),
                        py::arg("optional") = port.optional, py::arg("doc") = port.doc));
  }
  return all;
}

py::object default_value(const AttributeSpec& attribute) {
  if (attribute.required) return py::none();
  switch (attribute.kind) {
    case Kind::integer:
      return py::int_(static_cast<int64_t>(attribute.default_value));
    case Kind::real:
      return py::float_(attribute.default_value);
    case Kind::text:
      return py::str("");
    case Kind::integers:
      return py::list();
  }
  return py::none();
}

py::list attributes(const OpSpec& spec) {
  static const std::map<Kind, const char*> names = {{Kind::integer, "int"},
                                                    {Kind::real, "float"},
                                                    {Kind::text, "string"},
                                                    {Kind::integers, "ints"}};
  py::list all;
  for (const AttributeSpec& attribute : spec.attributes) {
    all.append(
        py::dict(py::arg("name") = attribute.name, py::arg("type") = names.at(attribute.kind),
                 py::arg("required") = attribute.required,
                 py::arg("default") = default_value(attribute), py::arg("doc") = attribute.doc));
  }
  return all;
}

py::dict schemas() {
  py::dict all;
  for (const OpSpec& spec : op_specs()) {
    py::list metrics;
    for (const MetricSpec& metric : spec.metrics) {
      metrics.append(py::dict(py::arg("name") = metric.name, py::arg("unit") = metric.unit,
                              py::arg("doc") = metric.doc));
    }
    all[spec.name] =
        py::dict(py::arg("doc") = spec.doc, py::arg("variadic") = spec.variadic,
                 py::arg("inputs") = ports(spec.inputs), py::arg("outputs") = ports(spec.outputs),
                 py::arg("attributes") = attributes(spec), py::arg("metrics") = metrics);
  }
  return all;
}

/// The vectors of a format's codebook, int8 [vectors, inputs of one]; of IQ1 8 times as large.
py::array_t<int8_t> grid(const std::string& name) {
  for (const FormatSpec& spec : kFormats) {
    if (spec.grid == nullptr || name != spec.name) continue;
    const int64_t vectors = int64_t{1} << spec.grid->bits, step = spec.grid->step;
    py::array_t<int8_t> all({vectors, step});
    for (int64_t at = 0; at < vectors * step; ++at) {
      const int level = spec.grid->level(static_cast<int>(at / step), at % step);
      all.mutable_data()[at] = static_cast<int8_t>(level);
    }
    return all;
  }
  throw Error("format is '" + name + "', expected one with a codebook of vectors");
}

py::dict cpu() {
  py::dict features;
  for (const auto& [name, present] : cpu_features()) features[name.c_str()] = present;
  return py::dict(py::arg("isa") = kernels(nullptr).isa, py::arg("isas") = runnable_isas(),
                  py::arg("features") = features);
}

}  // namespace
}  // namespace tamiz::python

PYBIND11_MODULE(_native, module) {
  using namespace tamiz::python;
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(thrown);
    } catch (const tamiz::Error& error) {
      py::set_error(PyExc_ValueError, error.what());
    }
  });
  module.def("run", &run, py::arg("op"), py::arg("inputs"), py::arg("out"), py::arg("isa"),
             py::arg("threads"), py::arg("attributes"));
  add_fits(module);
  module.def("schemas", &schemas);
  module.def("grid", &grid, py::arg("format"));
  module.def("cpu", &cpu);
  module.def("metrics", &tamiz::read_metrics, py::arg("session"));
  module.def("reset_metrics", &tamiz::reset_metrics, py::arg("session"));
}
