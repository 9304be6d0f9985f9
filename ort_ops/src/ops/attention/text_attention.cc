// Attention over whole texts: every token sees the tokens on both sides, or those before it.
//
// Phases: `store`, where queries and keys are rotated or multiplied with vectors of distances,
// rotates and scales them and lays them and the values out by heads; elsewhere keys and values are
// read in place. `attend` computes y with the kernel of decoders. With factors of 16 bits a task
// first rounds the keys and values of each of its heads, for all tiles of queries of the head. A
// text is a row of the batch, or where text_begins says so some tokens that stand side by side in
// one row, without padding. A token has the same bits in both, as the kernel's sums depend on the
// keys that it sees.
#include "ops/attention/text_attention.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>
#include <string>

#include "kernels/dispatch.h"
#include "ops/attention/text_attention_layout.h"
#include "ops/attention/text_attention_ports.h"

namespace tamiz {
namespace {

using In = TextAttentionInput;
using Out = TextAttentionOutput;
using Layout = TextLayout;

const Layout& layout_of(const Call& call) { return *reinterpret_cast<const Layout*>(call.scratch); }

bool has_relative(Ports inputs) { return inputs[In::c2p] || inputs[In::p2c]; }

class TextAttention : public Stage {
 public:
  TextAttention(const Attributes& attributes, const Kernels& kernels)
      : heads_(attributes.ints.at("num_heads")),
        kv_heads_(attributes.ints.at("kv_heads") ? attributes.ints.at("kv_heads") : heads_),
        scale_(attributes.floats.at("scale")),
        causal_(attributes.ints.at("causal") != 0),
        reach_(attributes.ints.at("reach")),
        kernels_(kernels.attention),
        pairs_(attributes.ints.at("factor_bits") == 16 ? pair_kernels(kernels) : nullptr) {
    if (heads_ < 1) {
      throw Error("num_heads is " + std::to_string(heads_) + ", expected a positive number");
    }
    if (kv_heads_ < 1 || heads_ % kv_heads_) {
      throw Error("kv_heads is " + std::to_string(kv_heads_) +
                  ", expected a divisor of num_heads " + std::to_string(heads_));
    }
    if (reach_ < 0) throw Error("reach is " + std::to_string(reach_) + ", expected 0 or more");
    const int64_t bits = attributes.ints.at("factor_bits");
    if (bits != 16 && bits != 32) {
      throw Error("factor_bits is " + std::to_string(bits) + ", expected 16 or 32");
    }
  }

  void infer(Ports inputs, Ports outputs) const override {
    check_text_attention(inputs, heads_, kv_heads_);
    outputs[Out::y].shape = inputs[In::q].shape;
  }
  size_t scratch_bytes(const Call& call) const override {
    Layout l;
    return lay_out(call, l);
  }
  int phases() const override { return 2; }
  void prepare(const Call& call) const override;
  size_t tasks(const Call& call, int phase) const override {
    const Layout& l = layout_of(call);
    if (phase == 1) return l.tasks;
    return l.stored ? divide_up(l.batch * l.tokens, Layout::kTaskTokens) : 0;
  }
  void run(const Call& call, int phase, size_t task) const override {
    const Layout& l = layout_of(call);
    if (phase == 0) return store(call, l, static_cast<int64_t>(task));
    attend(call, l, static_cast<int64_t>(task));
  }

 private:
  size_t lay_out(const Call& call, Layout& l) const;
  void spread_bias(const Call& call, const Layout& l) const;
  void spread_columns(const Call& call, const Layout& l) const;
  void add_relative(const Call& call, const Layout& l, int64_t task, int64_t head,
                    AttendArgs& a) const;
  void store(const Call& call, const Layout& l, int64_t task) const;
  void read_stored(const Call& call, const Layout& l, const Text& t, int64_t head,
                   AttendArgs& a) const;
  void read_in_place(const Call& call, const Layout& l, const Text& t, int64_t head, float* query,
                     AttendArgs& a) const;
  void read_pairs(const Call& call, const Layout& l, const Text& t, float* words, bool packed,
                  AttendArgs& a) const;
  void attend(const Call& call, const Layout& l, int64_t task) const;

  /// Calls `use` with each text in turn.
  template <class Use>
  void each_text(const Call& call, const Layout& l, Use use) const {
    const int64_t* begins = l.packed ? call.inputs[In::text_begins].as<int64_t>() : nullptr;
    Text t = {};
    for (int64_t first = 0; first < l.batch * l.tokens; first += t.tokens) {
      t.first = first;
      t.tokens = l.tokens;
      if (begins) {
        int64_t end = first + 1;
        while (end < l.tokens && !begins_text(begins, end)) ++end;
        t.tokens = end - first;
      } else {
        t.row = first / l.tokens;
      }
      t.shown = t.tokens;
      if (l.paired && l.masked) t.shown = shown_keys(mask_of(call, l, t), t.tokens);
      t.first_tile += t.tiles;
      t.tile = t.tokens <= kFewRows ? kFewRows : kernels_.tile_rows;
      t.tiles = divide_up(t.tokens, t.tile);
      use(t);
    }
  }

  static const int64_t* mask_of(const Call& call, const Layout& l, const Text& t) {
    return call.inputs[In::attention_mask].as<int64_t>() + t.row * l.tokens;
  }
  float scale(const Layout& l) const {
    return scale_ != 0.0f ? scale_ : 1.0f / std::sqrt(static_cast<float>(l.dim));
  }

  const int64_t heads_, kv_heads_;
  const float scale_;
  const bool causal_;
  const int64_t reach_;
  const AttentionKernels& kernels_;
  const PairKernels* const pairs_;  // null: factors are floats
};

/// Returns the bytes of scratch that the call needs.
size_t TextAttention::lay_out(const Call& call, Layout& l) const {
  ScratchPlan scratch;
  scratch.reserve<Layout>(1);
  const Shape& q = call.inputs[In::q].shape;
  const Tensor& frequencies = call.inputs[In::inverse_frequency];
  l = {};
  l.batch = q.dims[0];
  l.tokens = q.dims[1];
  l.dim = q.dims[2] / heads_;
  l.half = frequencies ? frequencies.shape.dims[0] : 0;
  l.packed = has_texts(call.inputs[In::text_begins]);
  l.masked = call.inputs[In::attention_mask] && !l.packed;
  l.paired = pairs_ && l.dim % kPairDims == 0;
  int64_t flops = 0, longest_tiles = 0;
  each_text(call, l, [&](const Text& t) {
    ++l.texts;
    l.tiles += t.tiles;
    longest_tiles = std::max(longest_tiles, t.tiles);
    l.longest = std::max(l.longest, t.tokens);
    flops +=
        t.tokens * (reach_ ? std::min(t.tokens, 2 * reach_ + 1) : t.tokens) * heads_ * l.dim * 4;
  });
  const int64_t units = l.tiles * heads_;
  const int64_t most_tasks = std::min(Layout::kMaxTasks, flops / Layout::kTaskFlops + 1);
  l.units_a_task = std::max<int64_t>(1, divide_up(units, most_tasks));
  if (l.paired) {  // a task rounds keys and values for all tiles of a head
    l.units_a_task = divide_up(l.units_a_task, longest_tiles) * longest_tiles;
  }
  l.tasks = divide_up(units, l.units_a_task);
  l.stored = l.half || has_relative(call.inputs);
  const int64_t elements = l.stored ? q.count() : 0;
  l.text = scratch.reserve<Text>(l.texts);
  l.q = scratch.reserve<float>(elements);
  l.k = scratch.reserve<float>(elements / heads_ * kv_heads_);
  l.v = scratch.reserve<float>(elements / heads_ * kv_heads_);
  const int64_t most_rows = l.paired ? kernels_.tile_rows : std::min(kernels_.tile_rows, l.longest);
  l.work_stride = whole_lines<float>(kernels_.work_floats(most_rows, l.dim, false));
  l.work = scratch.reserve<float>(l.tasks * l.work_stride);
  l.rows_stride = whole_lines<float>(std::min(kernels_.tile_rows, l.longest) * l.dim);
  l.rows = scratch.reserve<float>(l.stored ? 0 : l.tasks * l.rows_stride);
  l.angles = scratch.reserve<float>(divide_up(l.batch * l.tokens, Layout::kTaskTokens) *
                                    whole_lines<float>(2 * l.half));
  l.pages = scratch.reserve<int64_t>(divide_up(l.longest, kPageKeys));
  l.pair_stride = l.paired ? whole_lines<float>(pair_words(l.longest, l.dim)) : 0;
  l.pairs = scratch.reserve<float>(l.tasks * l.pair_stride);
  l.bias_stride = call.inputs[In::distance_bias] ? 2 * l.longest + kMostTileRows : 0;
  l.bias = scratch.reserve<float>(heads_ * l.bias_stride);
  if (has_relative(call.inputs)) {
    const Tensor& table = call.inputs[call.inputs[In::c2p] ? In::c2p : In::p2c];
    l.columns = table.shape.dims[2];
    l.column = scratch.reserve<int32_t>(2 * l.longest);
    const int64_t rows = std::max(kernels_.tile_rows, kRelativeKeys);
    l.relative_stride = whole_lines<float>(l.longest * kMostTileRows + rows * l.columns);
    l.relative = scratch.reserve<float>(l.tasks * l.relative_stride);
  }
  return scratch.bytes();
}

void TextAttention::prepare(const Call& call) const {
  Layout& l = *new (call.scratch) Layout;
  lay_out(call, l);
  Text* next = l.text.in(call.scratch);
  each_text(call, l, [&](const Text& t) { *next++ = t; });
  int64_t* const pages = l.pages.in(call.scratch);
  std::iota(pages, pages + divide_up(l.longest, kPageKeys), 0);
  if (l.bias_stride) spread_bias(call, l);
  if (l.columns) spread_columns(call, l);
}

/// One element for every distance in the longest text.
void TextAttention::spread_bias(const Call& call, const Layout& l) const {
  const Tensor& bias = call.inputs[In::distance_bias];
  const int64_t columns = bias.shape.dims[1], reach = columns / 2;
  for (int64_t h = 0; h < heads_; ++h) {
    const float* const from = bias.as<float>() + h * columns + reach;
    float* const to = l.bias.in(call.scratch) + h * l.bias_stride;
    for (int64_t i = 0; i < l.bias_stride; ++i) {
      to[i] = from[std::max(-reach, std::min(reach, l.longest - 1 - i))];
    }
  }
}

/// One column for every distance in the longest text.
void TextAttention::spread_columns(const Call& call, const Layout& l) const {
  const Tensor& buckets = call.inputs[In::buckets];
  const int64_t reach = buckets.shape.dims[0] / 2;
  const int64_t* const from = buckets.as<int64_t>() + reach;
  for (int64_t i = 0; i < 2 * l.longest; ++i) {
    const int64_t distance = std::max(-reach, std::min(reach, i + 1 - l.longest));
    l.column.in(call.scratch)[i] = static_cast<int32_t>(from[distance]);
  }
}

void TextAttention::store(const Call& call, const Layout& l, int64_t task) const {
  float* const cosine = l.angles.in(call.scratch) + task * whole_lines<float>(2 * l.half);
  float* const sine = cosine + l.half;
  const int64_t end = std::min((task + 1) * Layout::kTaskTokens, l.batch * l.tokens);
  for (int64_t token = task * Layout::kTaskTokens; token < end; ++token) {
    const Text& t = l.at(call.scratch, &Text::first, token);
    const int64_t i = token - t.first;
    if (l.half) {
      kernels_.rotary_angles(i, call.inputs[In::inverse_frequency].as<float>(), l.half, 1.0f,
                             cosine, sine);
    }
    for (int64_t h = 0; h < heads_; ++h) {
      const int64_t at = (token * heads_ + h) * l.dim;
      const int64_t to = (t.first * heads_ + h * t.tokens + i) * l.dim;
      kernels_.rotate(call.inputs[In::q].as<float>() + at, cosine, sine, l.half, l.dim, scale(l),
                      l.q.in(call.scratch) + to);
    }
    for (int64_t h = 0; h < kv_heads_; ++h) {
      const int64_t at = (token * kv_heads_ + h) * l.dim;
      const int64_t to = (t.first * kv_heads_ + h * t.tokens + i) * l.dim;
      kernels_.rotate(call.inputs[In::k].as<float>() + at, cosine, sine, l.half, l.dim, 1.0f,
                      l.k.in(call.scratch) + to);
      std::copy_n(call.inputs[In::v].as<float>() + at, l.dim, l.v.in(call.scratch) + to);
    }
  }
}

/// Queries, keys and values of a head as `store` left them.
void TextAttention::read_stored(const Call& call, const Layout& l, const Text& t, int64_t head,
                                AttendArgs& a) const {
  const int64_t kv_head = head / (heads_ / kv_heads_);
  const int64_t keys = (t.first * kv_heads_ + kv_head * t.tokens) * l.dim;
  a.query = l.q.in(call.scratch) + (t.first * heads_ + head * t.tokens + a.first_row) * l.dim;
  a.keys = l.k.in(call.scratch) + keys;
  a.values = l.v.in(call.scratch) + keys;
  a.row_stride = l.dim;
}

/// Keys and values of a head where the inputs have them; queries are scaled to `query`.
void TextAttention::read_in_place(const Call& call, const Layout& l, const Text& t, int64_t head,
                                  float* query, AttendArgs& a) const {
  const int64_t kv_head = head / (heads_ / kv_heads_);
  const int64_t keys = (t.first * kv_heads_ + kv_head) * l.dim;
  const float* const from =
      call.inputs[In::q].as<float>() + ((t.first + a.first_row) * heads_ + head) * l.dim;
  for (int64_t r = 0; r < a.rows; ++r) {
    kernels_.rotate(from + r * heads_ * l.dim, nullptr, nullptr, 0, l.dim, scale(l),
                    query + r * l.dim);
  }
  a.query = query;
  a.keys = call.inputs[In::k].as<float>() + keys;
  a.values = call.inputs[In::v].as<float>() + keys;
  a.row_stride = kv_heads_ * l.dim;
}

/// Rounds keys and values of a head to `words`, unless the tile before has `packed` them.
void TextAttention::read_pairs(const Call& call, const Layout& l, const Text& t, float* words,
                               bool packed, AttendArgs& a) const {
  if (!packed) pairs_->pack(a.keys, a.values, a.row_stride, t.shown, l.dim, words);
  a.keys = words;
  a.values = words + key_words(t.shown, l.dim);
  a.mask = nullptr;
  a.pages = l.pages.in(call.scratch);
  a.key_end = std::min(a.key_end, t.shown);
}

void TextAttention::attend(const Call& call, const Layout& l, int64_t task) const {
  const int64_t first = task * l.units_a_task;
  const int64_t end = std::min(first + l.units_a_task, l.tiles * heads_);
  for (int64_t unit = first; unit < end; ++unit) {
    const Text& t = l.at(call.scratch, &Text::first_tile, unit / heads_);
    const int64_t within = unit - t.first_tile * heads_;
    const int64_t head = within / t.tiles;
    AttendArgs a = {};
    a.first_row = within % t.tiles * t.tile;
    a.rows = std::min(t.tile, t.tokens - a.first_row);
    a.dim = l.dim;
    if (l.stored) {
      read_stored(call, l, t, head, a);
    } else {
      read_in_place(call, l, t, head, l.rows.in(call.scratch) + task * l.rows_stride, a);
    }
    if (l.masked) {
      a.mask = mask_of(call, l, t);
    } else {
      a.pages = l.pages.in(call.scratch);
    }
    a.group = 1;
    a.past = causal_ ? 0 : reach_ ? reach_ : t.tokens - 1;  // keys seen behind the query
    a.key_end = std::min(t.tokens, a.first_row + a.rows + a.past);
    if (reach_) {
      a.window = reach_ + 1 + a.past;
      a.key_begin = std::max<int64_t>(0, a.first_row - reach_) / kRangeKeys * kRangeKeys;
    }
    if (l.bias_stride) {
      a.bias = l.bias.in(call.scratch) + head * l.bias_stride + l.longest - 1 + a.first_row;
      a.bias_stride = -1;
    }
    if (l.columns) add_relative(call, l, task, head, a);
    a.work = l.work.in(call.scratch) + task * l.work_stride;
    a.out = call.outputs[Out::y].as<float>() + (t.first * heads_ + head) * l.dim;
    a.out_stride = heads_ * l.dim;
    if (l.paired && t.shown >= 0) {
      float* const words = l.pairs.in(call.scratch) + task * l.pair_stride;
      read_pairs(call, l, t, words, unit != first && within % t.tiles, a);
      pairs_->attend(a);
    } else {
      kernels_.attend(a);
    }
  }
}

/// Makes what c2p and p2c add to the scores of a tile its bias.
void TextAttention::add_relative(const Call& call, const Layout& l, int64_t task, int64_t head,
                                 AttendArgs& a) const {
  const auto table = [&](size_t port) -> const float* {
    const Tensor& of = call.inputs[port];
    return of ? of.as<float>() + head * l.dim * l.columns : nullptr;
  };
  float* const scores = l.relative.in(call.scratch) + task * l.relative_stride;
  RelativeArgs r = {};
  r.query = a.query;
  r.keys = a.keys;
  r.c2p = table(In::c2p);
  r.p2c = table(In::p2c);
  r.column = l.column.in(call.scratch) + l.longest - 1 - a.first_row;
  r.rows = a.rows;
  r.key_count = a.key_end;
  r.dim = l.dim;
  r.columns = l.columns;
  r.scale = scale(l);
  r.work = scores + l.longest * kMostTileRows;
  r.out = scores;
  r.out_stride = kMostTileRows;
  kernels_.relative_scores(r);
  a.bias = scores;
  a.bias_stride = kMostTileRows;
}

std::unique_ptr<Stage> make(const Attributes& attributes, const Kernels& kernels) {
  return std::make_unique<TextAttention>(attributes, kernels);
}

}  // namespace

const OpSpec& text_attention_spec() {
  static const OpSpec spec = {
      "TextAttention",
      "Attention over whole texts: y = softmax(scale * q k^T) v over the tokens j of a text with "
      "attention_mask[b, j] != 0 (0 where there is none, all without a mask); q and k are rotated "
      "first, and a bias of "
      "the distance j - i, or products with vectors of distances, may be added to the scores of "
      "query i. A token has the same bits in a text of a row without padding as in a row with "
      "padding on the right.",
      In::specs(),
      Out::specs(),
      false,
      {{"num_heads", AttributeSpec::Kind::integer, true, 0, "query heads"},
       {"kv_heads", AttributeSpec::Kind::integer, false, 0, "key/value heads; 0: num_heads"},
       {"scale", AttributeSpec::Kind::real, false, 0,
        "factor of the scores; 0: 1 / sqrt(head size)"},
       {"causal", AttributeSpec::Kind::integer, false, 0, "1: a query sees keys j <= i only"},
       {"reach", AttributeSpec::Kind::integer, false, 0,
        "tokens on each side that a query sees, j with |j - i| <= reach; 0: all"},
       {"factor_bits", AttributeSpec::Kind::integer, false, 32,
        "16: factors of the products are rounded to bfloat16, which takes a processor with "
        "AVX512_BF16, a head size that is a multiple of 32, and no hidden key before one that is "
        "not; 32: none is"}},
      {},
      make};
  return spec;
}

}  // namespace tamiz
