// Greedy decoding of a built bundle: cpp_host MODEL.onnx LIBRARY COUNT ID... prints COUNT token
// ids.
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

int main(int argc, char** argv) try {
  if (argc < 5) throw std::runtime_error("expected: MODEL.onnx LIBRARY COUNT ID...");
  std::vector<int64_t> ids, mask, positions, one{1};
  for (int i = 4; i < argc; ++i) ids.push_back(std::stoll(argv[i]));
  const int64_t count = std::stoll(argv[3]), capacity = static_cast<int64_t>(ids.size()) + count;
  Ort::Env env(ORT_LOGGING_LEVEL_ERROR, "cpp_host");
  Ort::SessionOptions options;
  options.RegisterCustomOpsLibrary(argv[2]);
  Ort::Session session(env, argv[1], options);
  Ort::IoBinding binding(session);
  Ort::AllocatorWithDefaultOptions allocator;
  auto bind = [&](const char* name, std::vector<int64_t>& data, std::vector<int64_t> shape) {
    binding.BindInput(
        name, Ort::Value::CreateTensor<int64_t>(allocator.GetInfo(), data.data(), data.size(),
                                                shape.data(), shape.size()));
  };
  for (size_t i = 0; i < session.GetInputCount(); ++i) {
    const std::string past = session.GetInputNameAllocated(i, allocator).get();
    if (past.rfind("past_", 0) != 0) continue;
    // State: zeros of full capacity, one buffer that is read as "past…" and written as "present…".
    auto shape = session.GetInputTypeInfo(i).GetTensorTypeAndShapeInfo().GetShape();
    for (int64_t free = 1; auto& size : shape)  // the batch comes before the tokens
      if (size < 0) size = std::exchange(free, capacity);
    auto state = Ort::Value::CreateTensor<float>(allocator, shape.data(), shape.size());
    const auto values = state.GetTensorTypeAndShapeInfo().GetElementCount();
    std::fill_n(state.GetTensorMutableData<float>(), values, 0.0f);
    binding.BindInput(past.c_str(), state);
    const size_t begin = past.rfind("past_key_values", 0) == 0 ? 15 : 4;
    binding.BindOutput(("present" + past.substr(begin)).c_str(), state);
  }
  bind("logits_to_keep", one, {1});
  binding.BindOutput("logits", allocator.GetInfo());
  for (int64_t step = 0, length = 0; step < count; ++step) {
    positions.clear();
    while (positions.size() < ids.size()) positions.push_back(length++);
    mask.assign(static_cast<size_t>(length), 1);
    bind("input_ids", ids, {1, static_cast<int64_t>(ids.size())});
    bind("attention_mask", mask, {1, length});
    bind("position_ids", positions, {1, static_cast<int64_t>(ids.size())});
    session.Run(Ort::RunOptions{}, binding);
    const auto results = binding.GetOutputValues();
    const auto* logits = results.back().GetTensorData<float>();
    const auto vocabulary = results.back().GetTensorTypeAndShapeInfo().GetElementCount();
    ids = {std::max_element(logits, logits + vocabulary) - logits};
    std::cout << ids[0] << (step + 1 < count ? " " : "\n") << std::flush;
  }
} catch (const std::exception& error) {
  std::cerr << "cpp_host: " << error.what() << "\n";
  return 1;
}
