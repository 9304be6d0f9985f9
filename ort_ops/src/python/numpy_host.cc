#include "python/numpy_host.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace py = pybind11;

namespace tamiz::python {
namespace {

constexpr Type kTypes[] = {Type::float32, Type::uint8, Type::int8,
                           Type::int32,   Type::int64, Type::float16};

py::dtype dtype_of(Type type) { return py::dtype(std::string(type_name(type))); }

}  // namespace

Tensor view(const py::array& array, const std::string& what) {
  Tensor tensor;
  for (const Type type : kTypes) {
    if (array.dtype().equal(dtype_of(type))) tensor.type = type;
  }
  const std::string dtype = py::str(array.dtype());
  if (!tensor) throw Error(what + " is " + dtype + ", a type that no op takes");
  if (!(array.flags() & py::array::c_style)) throw Error(what + " is not C-contiguous");
  if (!(array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_)) {
    throw Error(what + " is not aligned in memory");
  }
  if (array.ndim() > kMaxRank) {
    throw Error(what + " has rank " + std::to_string(array.ndim()) + ", expected at most " +
                std::to_string(kMaxRank));
  }
  tensor.data = const_cast<void*>(array.data());
  tensor.shape.rank = static_cast<int>(array.ndim());
  std::copy_n(array.shape(), array.ndim(), tensor.shape.dims);
  return tensor;
}

NumpyHost::NumpyHost(std::vector<py::object> inputs, std::vector<py::object> outputs,
                     size_t threads)
    : inputs_(std::move(inputs)), outputs_(std::move(outputs)), threads_(threads) {}

Tensor NumpyHost::input(size_t index) {
  const py::object& input = inputs_[index];
  const std::string what = "inputs[" + std::to_string(index) + "]";
  return input.is_none() ? Tensor() : view(py::cast<py::array>(input), what);
}

void* NumpyHost::output(size_t index, Type type, const Shape& shape) {
  py::object& output = outputs_[index];
  if (output.is(py::bool_(true))) {
    const std::vector<py::ssize_t> dims(shape.dims, shape.dims + shape.rank);
    output = py::array(dtype_of(type), dims);
  }
  const std::string what = "out[" + std::to_string(index) + "]";
  py::array array = py::cast<py::array>(output);
  const Tensor tensor = view(array, what);
  const bool same_shape = tensor.shape.rank == shape.rank &&
                          std::equal(shape.dims, shape.dims + shape.rank, tensor.shape.dims);
  if (tensor.type != type || !same_shape) {
    throw Error(what + " has another type or shape than the output");
  }
  return array.mutable_data();
}

void NumpyHost::parallel_for(size_t count, void (*body)(void*, size_t), void* data) {
  const size_t team = std::min(threads_, count);
  const auto work = [&](size_t member) {
    for (size_t i = member; i < count; i += team) body(data, i);
  };
  std::vector<std::thread> helpers;
  for (size_t member = 1; member < team; ++member) helpers.emplace_back(work, member);
  work(0);
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace tamiz::python
