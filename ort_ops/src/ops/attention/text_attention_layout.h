// How a call of TextAttention is cut into tasks, and what its scratch memory holds.
#pragma once

#include <algorithm>

#include "base/scratch.h"
#include "base/shapes.h"
#include "base/tensor.h"

namespace tamiz {

/// Tokens of one text.
struct Text {
  int64_t row;                      // of the mask
  int64_t first, tokens;            // the first one of all tokens of the call; how many
  int64_t first_tile, tile, tiles;  // of a head: tiles of the texts before; rows of a tile
  int64_t shown;  // keys that are not hidden, if those are its first ones; -1: there are others
};

/// See Text::shown.
inline int64_t shown_keys(const int64_t* mask, int64_t tokens) {
  const auto hides = [](int64_t shows) { return shows == 0; };
  const int64_t* const first = std::find_if(mask, mask + tokens, hides);
  return std::all_of(first, mask + tokens, hides) ? first - mask : -1;
}

inline bool has_texts(const Tensor& begins) { return begins && begins.shape.dims[0] > 1; }

/// Whether a text begins at token t.
inline bool begins_text(const int64_t* begins, int64_t t) { return begins[t] == t; }

/// How a call is cut into tasks, at the beginning of scratch; by shapes and texts alone.
struct TextLayout {
  static constexpr int64_t kMaxTasks = 64;        // of attend, each with scratch of its own
  static constexpr int64_t kTaskFlops = 1 << 15;  // less is not worth a thread
  static constexpr int64_t kTaskTokens = 16;      // tokens stored in one task

  int64_t batch, tokens, dim, half, longest;
  int64_t texts, tiles, units_a_task, tasks, work_stride;
  bool packed, masked, stored, paired;
  ScratchPart<Text> text;
  ScratchPart<float> q, k, v;  // [texts, heads, tokens of the text, dim], of k and v kv_heads
  int64_t rows_stride;
  ScratchPart<float> rows;     // where nothing is stored: scaled queries of a tile, by task
  ScratchPart<float> work;     // of the kernel `attend`, by task
  ScratchPart<float> angles;   // cosines and sines, by task of `store`
  ScratchPart<int64_t> pages;  // 0, 1, ..: without a mask, keys lie in their order
  int64_t pair_stride;
  ScratchPart<float> pairs;  // where factors have 16 bits: keys and values of a head, by task
  int64_t bias_stride;
  ScratchPart<float> bias;      // by head, of query - key from 1 - longest on; read beyond its end
  int64_t columns;              // of c2p and p2c
  ScratchPart<int32_t> column;  // b(d) of key - query, from 1 - longest on
  int64_t relative_stride;      // floats of a task
  ScratchPart<float> relative;  // what c2p and p2c add: [longest, tile rows]; work

  const Text& at(std::byte* scratch, int64_t Text::* begin, int64_t index) const {
    const Text* all = text.in(scratch);
    const auto after = [begin](int64_t x, const Text& t) { return x < t.*begin; };
    return std::upper_bound(all, all + texts, index, after)[-1];
  }
};

}  // namespace tamiz
