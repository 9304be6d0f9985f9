// Fits of weights on NumPy arrays.
#include "python/fits.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <string>

#include "kernels/dispatch.h"
#include "ops/products/format_fit.h"
#include "ops/products/seedlm_fit.h"

namespace py = pybind11;

namespace tamiz::python {
namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

py::array_t<uint8_t> fit_seedlm(const Floats& weight, const Floats& root_m, int bits,
                                const std::optional<std::string>& isa) {
  if (bits != 3 && bits != 4) {
    throw Error("bits is " + std::to_string(bits) + ", expected 3 or 4");
  }
  if (weight.ndim() != 2 || weight.size() == 0 || root_m.ndim() != 1 ||
      root_m.shape(0) != weight.shape(1)) {
    throw Error("weight is no [N, K] with root_m [K], N and K at least 1");
  }
  std::vector<uint8_t> packed;
  {
    const py::gil_scoped_release release;
    packed = tamiz::fit_seedlm(weight.data(), root_m.data(), weight.shape(0), weight.shape(1), bits,
                               kernels(isa ? isa->c_str() : nullptr));
  }
  const py::ssize_t tiles = tile_count(weight.shape(0));
  py::array_t<uint8_t> made({tiles, static_cast<py::ssize_t>(packed.size()) / tiles});
  std::copy(packed.begin(), packed.end(), made.mutable_data());
  return made;
}

/// levels, whether they are consecutive, whether there is a minimum, the home of scales (0 group,
/// 1 super-block, 2 output), group, block, least and largest whole number of a scale.
using FormatTuple = std::tuple<std::vector<float>, bool, bool, int, int64_t, int64_t, int, int>;

FitFormat fit_format_of(const FormatTuple& tuple) {
  const auto& [levels, linear, minimum, home, group, block, lowest, highest] = tuple;
  if (levels.size() < 2 || group < 1 || block < group || block % group || home < 0 || home > 2) {
    throw Error("format has fewer than two levels, or blocks that are no multiple of its groups");
  }
  return {levels, linear, minimum, static_cast<ScaleHome>(home), group, block, lowest, highest};
}

template <class T>
py::object rows(const std::vector<T>& values, py::ssize_t n) {
  if (values.empty()) return py::none();
  py::array_t<T> made({n, static_cast<py::ssize_t>(values.size()) / n});
  std::copy(values.begin(), values.end(), made.mutable_data());
  return std::move(made);
}

py::tuple fit_format(const FormatTuple& tuple, const Floats& weight, const Floats& cost,
                     bool search) {
  if (weight.ndim() != 2 || weight.size() == 0 || cost.ndim() != 1 ||
      cost.shape(0) != weight.shape(1)) {
    throw Error("weight is no [N, K] with cost [K], N and K at least 1");
  }
  const FitFormat format = fit_format_of(tuple);
  const py::ssize_t n = weight.shape(0);
  FittedFormat made;
  {
    const py::gil_scoped_release release;
    made = tamiz::fit_format(format, weight.data(), cost.data(), n, weight.shape(1), search);
  }
  return py::make_tuple(rows(made.quants, n), rows(made.scales, n), rows(made.minima, n),
                        rows(made.d, n), rows(made.dmin, n));
}

py::tuple round_with_feedback(const FormatTuple& tuple, const Floats& weight, const Floats& carried,
                              const Floats& r, const Floats& scale, const Floats& minimum) {
  const FitFormat format = fit_format_of(tuple);
  const auto is = [](const Floats& array, py::ssize_t first, py::ssize_t second) {
    return array.ndim() == 2 && array.shape(0) == first && array.shape(1) == second;
  };
  const py::ssize_t n = weight.ndim() == 2 ? weight.shape(0) : 0;
  const py::ssize_t width = n > 0 ? weight.shape(1) : 0;
  if (width == 0 || width % format.group || !is(carried, n, width) || !is(r, width, width) ||
      !is(scale, n, width / format.group) || !is(minimum, n, width / format.group)) {
    throw Error(
        "weight is no [N, width] of whole groups with r [width, width] and factors of each");
  }
  py::array_t<float> errors({n, width});
  py::array_t<uint8_t> quants({n, width});
  std::copy_n(carried.data(), carried.size(), errors.mutable_data());
  {
    float* const left = errors.mutable_data();
    uint8_t* const made = quants.mutable_data();
    const py::gil_scoped_release release;
    tamiz::round_with_feedback(format, weight.data(), r.data(), scale.data(), minimum.data(), n,
                               width, left, made);
  }
  return py::make_tuple(quants, errors);
}

}  // namespace

void add_fits(py::module_& module) {
  module.def("fit_seedlm", &fit_seedlm, py::arg("weight"), py::arg("root_m"), py::arg("bits"),
             py::arg("isa"));
  module.def("fit_format", &fit_format, py::arg("format"), py::arg("weight"), py::arg("cost"),
             py::arg("search"));
  module.def("round_with_feedback", &round_with_feedback, py::arg("format"), py::arg("weight"),
             py::arg("carried"), py::arg("r"), py::arg("scale"), py::arg("minimum"));
}

}  // namespace tamiz::python
