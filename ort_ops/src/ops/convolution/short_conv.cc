// Short convolution over time as one stage, with gates or without, and what it keeps of a sequence.
//
//   u_t = b_t x_t,  y_t = c_t f(bias + sum_j w_j u_(t - taps + 1 + j))
//
// with u_t = 0 before the first token, and f(s) = s or silu(s).
//
// The state holds u of the last tokens: that of token t lies at row t mod rows of its sequence, and
// where `sequences` has pages, at row (t mod 64) mod rows of its page. So a sequence forgets its
// last tokens, up to rows - taps + 1 of them, by going on from an earlier one, and a page that is
// full holds what the tokens behind it read, whoever shares it.
//
// Tasks divide the channels: one task computes all tokens of a channel in their order, and a
// segment reads what one before it has written.
#include "ops/convolution/short_conv.h"

#include <algorithm>
#include <cstring>

#include "base/shapes.h"
#include "kernels/kernels.h"
#include "ops/attention/segments.h"

namespace tamiz {
namespace {

#define SHORT_CONV_INPUTS(PORT)                                                                    \
  PORT(b, float32, optional, "the shape of x: gate of the input; omitted: 1")                      \
  PORT(c, float32, optional, "the shape of x: gate of the output; omitted: 1")                     \
  PORT(x, float32, required, "[batch, sequence, width]")                                           \
  PORT(weight, float32, required, "[taps, width], the oldest token first")                         \
  PORT(past, float32, required,                                                                    \
       "[batch, rows, width], rows at least taps: u of the last tokens, that of token t at row t " \
       "mod rows. For sequences [pages, rows, width], at row (t mod 64) mod rows of its page")     \
  PORT(attention_mask, int64, required,                                                            \
       "[batch, past and new tokens]: u is 0 at tokens where it is 0")                             \
  PORT(sequences, int64, optional,                                                                 \
       "as Attention takes it; past and present are then the same memory, and attention_mask is "  \
       "not read")                                                                                 \
  PORT(bias, float32, optional, "[width], added to the sum; omitted: 0")
#define SHORT_CONV_OUTPUTS(PORT)               \
  PORT(y, float32, required, "the shape of x") \
  PORT(present, float32, required, "the shape of past; may be its memory")
TAMIZ_PORTS(ShortConvInput, SHORT_CONV_INPUTS);
TAMIZ_PORTS(ShortConvOutput, SHORT_CONV_OUTPUTS);

using In = ShortConvInput;
using Out = ShortConvOutput;

constexpr int64_t kTaskElements = 8192;
constexpr int64_t kLine = 16;  // floats
constexpr int64_t kMostTaps = 16;

class ShortConv : public Stage {
 public:
  ShortConv(const Attributes& attributes, const Kernels& kernels)
      : silu_(attributes.ints.at("silu") != 0), kernels_(kernels.short_conv) {}

  void infer(Ports inputs, Ports outputs) const override;
  void prepare(const Call& call) const override;
  size_t tasks(const Call& call, int) const override {
    return divide_up(width(call), channels(call));
  }
  void run(const Call& call, int, size_t task) const override;

 private:
  static CacheShape shape_of(Ports inputs);
  static int64_t width(const Call& call) { return call.inputs[In::weight].shape.dims[1]; }
  static int64_t channels(const Call& call);
  void run_segment(const Call& call, const Segment& segment, int64_t begin, int64_t count) const;

  const bool silu_;
  const ShortConvKernels& kernels_;
};

void ShortConv::infer(Ports inputs, Ports outputs) const {
  expect_rank("x", inputs[In::x], 3, "batch, sequence, width");
  expect_rank("weight", inputs[In::weight], 2, "taps, width");
  expect_rank("past", inputs[In::past], 3, "batch, rows, width");
  expect_rank("attention_mask", inputs[In::attention_mask], 2, "batch, past and new tokens");
  const int64_t batch = inputs[In::x].shape.dims[0], tokens = inputs[In::x].shape.dims[1];
  const int64_t taps = inputs[In::weight].shape.dims[0], wide = inputs[In::weight].shape.dims[1];
  if (taps < 1 || taps > kMostTaps) {
    throw Error("weight has " + std::to_string(taps) + " taps, expected 1 to " +
                std::to_string(kMostTaps));
  }
  const Shape y = {3, {batch, tokens, wide}};
  expect_shape("x", inputs[In::x], y, "batch, sequence, columns of weight");
  if (const Tensor& b = inputs[In::b]) expect_shape("b", b, y, "the shape of x");
  if (const Tensor& c = inputs[In::c]) expect_shape("c", c, y, "the shape of x");
  if (const Tensor& bias = inputs[In::bias])
    expect_shape("bias", bias, Shape{1, {wide}}, "columns of weight");
  const int64_t rows = inputs[In::past].shape.dims[1];
  if (rows < taps || rows > kPageKeys) {
    throw Error("past has " + std::to_string(rows) + " rows, expected at least the " +
                std::to_string(taps) + " taps of weight and at most " + std::to_string(kPageKeys));
  }
  const CacheShape shape = shape_of(inputs);
  const int64_t states = in_pages(inputs[In::sequences]) ? inputs[In::past].shape.dims[0] : batch;
  expect_shape("past", inputs[In::past], Shape{3, {states, rows, wide}},
               "batch of x, rows, columns of weight");
  if (!in_pages(inputs[In::sequences])) {
    expect_shape("attention_mask", inputs[In::attention_mask], Shape{2, {batch, shape.keys}},
                 "the batch of x");
    if (shape.past < 0) {
      throw Error("attention_mask has " + std::to_string(shape.keys) +
                  " columns, expected at least the sequence length " + std::to_string(tokens));
    }
  }
  outputs[Out::y].shape = y;
  outputs[Out::present].shape = inputs[In::past].shape;
}

CacheShape ShortConv::shape_of(Ports inputs) {
  CacheShape s = {};
  s.batch = inputs[In::x].shape.dims[0];
  s.tokens = inputs[In::x].shape.dims[1];
  s.group = 1;
  if (in_pages(inputs[In::sequences])) {
    s.keys = check_sequences(inputs[In::sequences], s.batch, s.tokens,
                             inputs[In::past].shape.dims[0] * kPageKeys);
  } else {
    s.keys = inputs[In::attention_mask].shape.dims[1];
    s.past = s.keys - s.tokens;
  }
  return s;
}

int64_t ShortConv::channels(const Call& call) {
  const int64_t* x = call.inputs[In::x].shape.dims;
  const int64_t tokens = std::max<int64_t>(1, x[0] * x[1]);
  return std::max<int64_t>(4, divide_up(kTaskElements, tokens * kLine)) * kLine;
}

void ShortConv::prepare(const Call& call) const {
  const bool in_place = call.inputs[In::past].data == call.outputs[Out::present].data;
  if (in_pages(call.inputs[In::sequences]) && !in_place) {
    throw Error("past and present differ, expected the same memory for sequences");
  }
}

void ShortConv::run(const Call& call, int, size_t task) const {
  const int64_t begin = task * channels(call);
  const int64_t count = std::min(channels(call), width(call) - begin);
  const Tensor& past = call.inputs[In::past];
  const Tensor& present = call.outputs[Out::present];
  const int64_t rows = past.shape.dims[0] * past.shape.dims[1];
  for (int64_t row = 0; row < rows && past.data != present.data; ++row) {
    const int64_t at = row * width(call) + begin;
    std::memcpy(present.as<float>() + at, past.as<float>() + at, sizeof(float) * count);
  }
  Segments(shape_of(call.inputs), call.inputs[In::sequences], 1).each([&](const Segment& segment) {
    run_segment(call, segment, begin, count);
  });
}

void ShortConv::run_segment(const Call& call, const Segment& segment, int64_t begin,
                            int64_t count) const {
  const int64_t wide = width(call), rows = call.inputs[In::past].shape.dims[1];
  float* const state = call.outputs[Out::present].as<float>() + begin;
  const auto kept = [&](int64_t token) {
    const int64_t page = segment.pages ? segment.pages[token / kPageKeys] : segment.sequence;
    const int64_t row = segment.pages ? token % kPageKeys % rows : token % rows;
    return state + (page * rows + row) * wide;
  };
  const Tensor& mask = call.inputs[In::attention_mask];
  const Tensor &b = call.inputs[In::b], &c = call.inputs[In::c], &bias = call.inputs[In::bias];
  const float* earlier[kMostTaps];
  ShortConvArgs a = {};
  a.taps = call.inputs[In::weight].shape.dims[0];
  a.weight = call.inputs[In::weight].as<float>() + begin;
  a.stride = wide;
  a.count = count;
  a.earlier = earlier;
  a.bias = bias ? bias.as<float>() + begin : nullptr;
  a.silu = silu_;
  for (int64_t i = 0; i < segment.tokens; ++i) {
    const int64_t token = segment.past + i;
    for (int64_t tap = 0; tap < a.taps - 1; ++tap) {
      const int64_t before = token - a.taps + 1 + tap;
      earlier[tap] = before < 0 ? nullptr : kept(before);
    }
    const int64_t at = (segment.first + i) * wide + begin;
    a.b = b ? b.as<float>() + at : nullptr;
    a.c = c ? c.as<float>() + at : nullptr;
    a.x = call.inputs[In::x].as<float>() + at;
    a.u = kept(token);
    a.y = call.outputs[Out::y].as<float>() + at;
    a.hidden = !segment.pages && !mask.as<int64_t>()[segment.sequence * mask.shape.dims[1] + token];
    kernels_.token(a);
  }
}

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<ShortConv>(attributes, kernels);
}

}  // namespace

const OpSpec& short_conv_spec() {
  static const OpSpec spec = {
      "ShortConv",
      "Causal convolution over time, each channel alone: u_t = b_t x_t, y_t = c_t f(bias + sum_j "
      "w_j u_(t - taps + 1 + j)), f(s) = s or silu(s), and u_t = 0 before the first token. What it "
      "keeps of a sequence is u of the last tokens, zeros at the start. The last rows - taps + 1 "
      "tokens can be forgotten: a run that begins at an earlier token reads the rows that it "
      "needs.",
      In::specs(),
      Out::specs(),
      false,
      {{"silu", AttributeSpec::Kind::integer, false, 0, "1: f is silu"}},
      {},
      make};
  return spec;
}

}  // namespace tamiz
