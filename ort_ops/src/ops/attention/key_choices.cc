// The choices of keys that Attention has.
#include "base/shapes.h"
#include "kernels/sketch/sketch.h"
#include "ops/attention/attention_ports.h"
#include "ops/attention/event_choice.h"
#include "ops/attention/key_choice.h"
#include "ops/attention/sketch_choice.h"
#include "ops/attention/window_choice.h"

namespace tamiz {

using In = AttentionInput;
using Out = AttentionOutput;

std::vector<std::unique_ptr<KeyChoice>> key_choices(const Attributes& attributes,
                                                    const Kernels& kernels) {
  std::vector<std::unique_ptr<KeyChoice>> all;
  all.push_back(std::make_unique<EventChoice>(attributes, kernels));
  all.push_back(std::make_unique<SketchChoice>(attributes, kernels.sketch));
  all.push_back(std::make_unique<WindowChoice>(attributes));
  return all;
}

std::vector<AttributeSpec> key_choice_attributes() {
  std::vector<AttributeSpec> all = WindowChoice::attributes();
  for (const auto& more : {SketchChoice::attributes(), EventChoice::attributes()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

const int64_t* ChoiceCall::mask(int64_t head) const {
  return inputs[In::attention_mask].as<int64_t>() + head / shape.kv_heads * shape.keys;
}

const float* ChoiceCall::key_mean(int64_t head) const {
  return shape.row_of(inputs[In::key_mean], head);
}

void infer_sketch(const CacheShape& shape, int64_t planes, Ports inputs, Ports outputs) {
  if (!outputs[Out::present_sketch]) {
    throw Error("present_sketch is missing, expected it where past_sketch is given");
  }
  if (shape.dim > kMostSketchBits) {
    throw Error("past_key has head size " + std::to_string(shape.dim) + ", expected at most " +
                std::to_string(kMostSketchBits) + " for a sketch");
  }
  Shape sketch = inputs[In::past_key].shape;
  sketch.dims[3] = sketch_words(shape.dim, planes);
  expect_shape("past_sketch", inputs[In::past_sketch], sketch,
               "past_key, with the words of a sketch");
  sketch.dims[2] = shape.capacity;
  outputs[Out::present_sketch].shape = sketch;
}

}  // namespace tamiz
